/**
 * Makes an ES module of each entry, after a build. It hands on what the CommonJS one exports, so that there is one Limiter for
 * programs that import and for those that require.
 */

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { exports } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
for (const entry of Object.values(exports)) {
  if (typeof entry === "string") continue;
  const path = (target) => new URL(`../${target}`, import.meta.url);
  const name = entry.require.default.split("/").at(-1);
  const names = Object.keys(require(`../${entry.require.default}`)).sort();
  writeFileSync(path(entry.import.default), `export { ${names.join(", ")} } from "./${name}";\n`);
  writeFileSync(path(entry.import.types), `export * from "./${name}";\n`);
}

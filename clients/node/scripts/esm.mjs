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
  const name = entry.require.split("/").at(-1);
  const names = Object.keys(require(`../${entry.require}`)).sort();
  writeFileSync(path(entry.import), `export { ${names.join(", ")} } from "./${name}";\n`);
  // Where the declarations of a module are, its name says.
  writeFileSync(path(entry.import.replace(/mjs$/, "d.mts")), `export * from "./${name}";\n`);
}

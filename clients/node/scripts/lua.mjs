/** Makes src/lua.ts of the Lua sources in ../../go/lua, which `make functions` makes, before each build. */

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const from = fileURLToPath(new URL("../../go/lua/", import.meta.url));
const read = (kind) =>
  [`${kind}.head`, "core", `${kind}.tail`].map((part) => readFileSync(`${from}/${part}.lua`, "utf8")).join("");
const literal = (text) => `\`${text.replace(/[`\\]|\$(?=\{)/g, "\\$&")}\``;
const library = read("library");
const script = read("script");
const sha = createHash("sha1").update(script).digest("hex");
writeFileSync(
  new URL("../src/lua.ts", import.meta.url),
  `/** Made of ../go/lua by \`npm run lua\`. */

/** The library for FUNCTION LOAD. */
export const library = ${literal(library)};

/** The script for EVAL. */
export const script = ${literal(script)};

/** The script's SHA-1, for EVALSHA. */
export const scriptSha = "${sha}";
`,
);

/** Makes src/lua.ts of the Lua sources in ../../functions, before each build. A test checks that the two are the same. */

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const from = process.argv[2] ?? fileURLToPath(new URL("../../../functions/", import.meta.url));
const read = (name) => readFileSync(`${from}/${name}`, "utf8");
const literal = (text) => `\`${text.replace(/[`\\]|\$(?=\{)/g, "\\$&")}\``;
const library = read("rl.library.lua");
const script = read("rl.script.lua");
const sha = createHash("sha1").update(script).digest("hex");
writeFileSync(
  new URL("../src/lua.ts", import.meta.url),
  `/** Made of functions/ by \`npm run lua\`. */

/** The library for FUNCTION LOAD. */
export const library = ${literal(library)};

/** The script for EVAL. */
export const script = ${literal(script)};

/** The script's SHA-1, for EVALSHA. */
export const scriptSha = "${sha}";
`,
);

/**
 * Builds the package when npm prepares it: in `npm ci`, before `npm pack`, and when this folder is installed as a
 * dependency, where npm installs none of what the build needs.
 */

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
const npm = (...args) =>
  execFileSync("npm", args, { stdio: ["ignore", "ignore", "inherit"], shell: process.platform === "win32" });
if (!existsSync("node_modules/typescript"))
  npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error");
npm("run", "build");

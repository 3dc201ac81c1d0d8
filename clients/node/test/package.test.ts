/** What is published: the files, the Lua sources, and how it is imported. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { root } from "./support/server.js";

const folder = join(root, "clients/node");
const read = (path: string) => readFileSync(join(root, path), "utf8");

test("the Lua sources are those of the repository", async () => {
  const sources = await import(join(folder, "dist/lua.js"));
  for (const kind of ["library", "script"]) {
    const parts = [`${kind}.head`, "core", `${kind}.tail`].map((part) => read(`clients/go/lua/${part}.lua`));
    assert.equal(sources[kind], parts.join(""), "npm run lua");
  }
});

test("CommonJS can require every entry", () => {
  const require = createRequire(__filename);
  const { exports } = JSON.parse(read("clients/node/package.json"));
  for (const entry of Object.keys(exports)) {
    const name = `redis-rl${entry.slice(1)}`;
    assert.ok(Object.keys(require(name)).length > 0, name);
  }
  assert.equal(typeof require("redis-rl").Limiter, "function");
});

test("the package has what it exports, and nothing else", () => {
  const output = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
    cwd: folder,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  const answer = JSON.parse(output);
  const [packed] = Array.isArray(answer) ? answer : Object.values<{ files: { path: string }[] }>(answer);
  const files: string[] = packed.files.map((file: { path: string }) => file.path);
  const { exports, dependencies } = JSON.parse(read("clients/node/package.json"));
  assert.deepEqual(Object.keys(dependencies), ["cluster-key-slot"]);
  const targets = (entry: string | object): string[] => {
    return typeof entry === "string" ? [entry] : Object.values(entry).flatMap(targets);
  };
  for (const path of targets(exports)) assert.ok(files.includes(path.slice(2)), path);
  assert.deepEqual(
    files.filter((path) => !/^(dist|src)\/[\w-]+\.(ts|js|mjs|d\.ts|d\.mts|js\.map|d\.ts\.map)$/.test(path)).sort(),
    ["LICENSE", "README.md", "package.json"],
  );
});

test("the lockfile says what is installed and not from where", () => {
  const { packages } = JSON.parse(read("clients/node/package-lock.json")) as {
    packages: Record<string, { resolved?: string }>;
  };
  for (const { resolved } of Object.values(packages)) {
    assert.equal(resolved, undefined);
  }
});

test("the licence is that of the repository", () => {
  assert.equal(read("clients/node/LICENSE"), read("LICENSE"));
  assert.ok(existsSync(join(folder, "README.md")));
});

test("a folder that has none of what the build needs builds when it is installed", () => {
  const place = mkdtempSync(join(tmpdir(), "redis-rl-install-"));
  try {
    // As in a clone of the repository.
    for (const path of ["clients/go/lua", "clients/node"]) {
      cpSync(join(root, path), join(place, "a clone", path), {
        recursive: true,
        filter: (from) => !/\/(node_modules|dist|build)$|src\/lua\.ts$/.test(from),
      });
    }
    const app = join(place, "app");
    mkdirSync(app);
    const run = (program: string, ...args: string[]) =>
      execFileSync(program, args, { cwd: app, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    run("npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "../a clone/clients/node");
    for (const script of [
      'require("redis-rl/express-rate-limit")',
      'import("redis-rl").then((all) => all.sliding("1/s"))',
    ]) {
      run(process.execPath, "-e", script);
    }
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
});

test("an ES module imports every name of every entry, and they are those that CommonJS requires", () => {
  const require = createRequire(__filename);
  const { exports } = JSON.parse(read("clients/node/package.json"));
  const checks = Object.keys(exports)
    .filter((entry) => entry !== "./package.json")
    .map((entry, i) => {
      const name = JSON.stringify(`redis-rl${entry.slice(1)}`);
      const names = Object.keys(require(JSON.parse(name)));
      const same = names.map((each) => `assert.equal(require(${name}).${each}, ${each}${i})`).join(";");
      return `import { ${names.map((each) => `${each} as ${each}${i}`).join(", ")} } from ${name}; ${same};`;
    });
  const script = `import assert from "node:assert"; import { createRequire } from "node:module";
    const require = createRequire(${JSON.stringify(join(folder, "package.json"))}); ${checks.join("\n")}`;
  execFileSync(process.execPath, ["--input-type=module", "-e", script], { cwd: folder });
});

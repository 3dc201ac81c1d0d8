/** The README's programs, as they stand there but for their ports. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { eventually, freePort, root, Server } from "./support/server.js";

const folder = join(root, "clients/node");

interface Program {
  readonly url: string;
  readonly isAlive: () => boolean;
  readonly said: () => string;
}

/** A folder in which the package and those of its frameworks are installed. */
function installed(t: TestContext): string {
  const place = mkdtempSync(join(tmpdir(), "redis-rl-readme-"));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  mkdirSync(join(place, "node_modules"));
  symlinkSync(folder, join(place, "node_modules/redis-rl"));
  for (const name of readdirSync(join(folder, "node_modules"))) {
    if (!name.startsWith(".")) symlinkSync(join(folder, "node_modules", name), join(place, "node_modules", name));
  }
  return place;
}

/** Starts a program as it stands in the README, but for the server's port and its own. */
async function start(
  t: TestContext,
  port: number,
  sourceOf: RegExp,
  changes: Record<string, string> = {},
  place = installed(t),
  instead?: string,
): Promise<Program> {
  const [, source = ""] = instead === undefined ? (sourceOf.exec(readme) ?? []) : [sourceOf, instead];
  const http = await freePort();
  let program = withPort(source, port)
    .replace("listen(3000)", `listen(${http}, "127.0.0.1")`)
    .replace("port: 3000", `port: ${http}, host: "127.0.0.1"`);
  for (const [old, changed] of Object.entries(changes)) program = program.replace(old, changed);
  assert.match(program, new RegExp(`${http}`));
  writeFileSync(join(place, "server.mjs"), program);
  const child = spawn(process.execPath, ["server.mjs"], { cwd: place, stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.on("data", (data) => {
    said += data;
  });
  t.after(() => child.kill("SIGKILL"));
  return { url: `http://127.0.0.1:${http}`, isAlive: () => child.exitCode === null, said: () => said };
}

const readme = readFileSync(join(folder, "README.md"), "utf8");

function withPort(source: string, port: number): string {
  return source.replace("createClient()", `createClient({ url: "redis://127.0.0.1:${port}" })`);
}

/** A program by its first line, the name of its file. */
function named(name: string): RegExp {
  return new RegExp(`\`\`\`[jt]s\\n// ${name.replace(/[.[\]]/g, "\\$&")}\\n([\\s\\S]*?)\`\`\``);
}

test("ten lines: what they print, with a server and without", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  const place = installed(t);
  const [, program = ""] = named("first.mjs").exec(readme) ?? [];
  assert.ok(program.trim().split("\n").length <= 11);
  const run = () => {
    writeFileSync(join(place, "first.mjs"), withPort(program, server.port));
    return execFileSync(process.execPath, ["first.mjs"], { cwd: place, encoding: "utf8", stdio: "pipe" });
  };
  assert.equal(run(), `${"allowed\n".repeat(5)}denied, try again in 60 s\nmode: module\n`);
  await server.stop();
  assert.throws(run, /connect ECONNREFUSED/);
});

test("a server of node:http survives what happens to its Redis", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  const place = installed(t);
  const [, shared = ""] = named("limiter.mjs").exec(readme) ?? [];
  writeFileSync(join(place, "limiter.mjs"), withPort(shared, server.port));
  const app = await start(t, server.port, named("server.mjs"), {}, place);
  const status = () =>
    fetch(app.url).then(
      (answer) => answer.status,
      () => 0,
    );
  await eventually("it answers", async () => (await status()) === 200);
  const answer = await fetch(app.url);
  assert.equal(answer.headers.get("ratelimit-policy"), '"1s";q=10;w=1, "60s";q=100;w=60');
  server.pause();
  const meanwhile = [];
  for (const until = performance.now() + 3000; performance.now() < until; ) meanwhile.push(await status());
  server.resume();
  assert.ok(meanwhile.length > 3 && meanwhile.slice(1).every((each) => each === 503), meanwhile.slice(0, 9).join());
  await eventually("it answers again", async () => (await status()) === 200);
  await server.stop();
  await sleep(100);
  assert.equal(await status(), 503);
  const again = await Server.start({ mode: "module", port: server.port });
  t.after(() => again.stop());
  await eventually("it finds the new server", async () => (await status()) === 200);
  await again.run("DEL", "ip:127.0.0.1");
  await again.run("LPUSH", "ip:127.0.0.1", "x");
  assert.equal(await status(), 500);
  await again.run("DEL", "ip:127.0.0.1");
  const statuses = await Promise.all(Array.from({ length: 15 }, status));
  assert.ok(statuses.includes(200) && statuses.includes(429), statuses.join());
  assert.ok(app.isAlive(), app.said());
});

for (const [proxies, identity] of [
  ["10.0.0.0/8", "127.0.0.1"],
  ["127.0.0.0/8", "203.0.113.9"],
] as const) {
  test(`behind proxies: a request from 127.0.0.1, where ${proxies} are proxies`, async (t) => {
    const server = await Server.start({ mode: "module" });
    t.after(() => server.stop());
    const app = await start(t, server.port, /## Behind proxies[\s\S]*?```js\n([\s\S]*?)```/, {
      "10.0.0.0/8": proxies,
    });
    const headers = {
      "x-forwarded-for": `198.51.100.1, 203.0.113.9, ${proxies === "10.0.0.0/8" ? "10.0.0.1" : "127.0.0.2"}`,
    };
    await eventually("it answers", async () => {
      const answer = await fetch(app.url, { headers }).catch(() => undefined);
      return answer?.status === 200;
    });
    assert.deepEqual(await server.run("KEYS", "*"), [`rl:sliding-100/60s:{${identity}}`]);
    assert.equal(app.said(), "");
  });
}

/** The programs of frameworks: a handler of Next.js is served by another server, decorators are compiled. */
for (const [name, framework] of Object.entries({
  express: "express.mjs",
  fastify: "fastify.mjs",
  hono: "hono.mjs",
  koa: "koa.mjs",
  next: "app/item/[id]/route.js",
  nest: "nest.ts",
})) {
  test(`the first minute with ${name}: five requests of a route are let in`, async (t) => {
    const server = await Server.start({ mode: "module" });
    t.after(() => server.stop());
    const place = installed(t);
    const [, shared = ""] = named("limiter.mjs").exec(readme) ?? [];
    writeFileSync(join(place, "limiter.mjs"), withPort(shared, server.port));
    const source = named(framework);
    if (name === "next") {
      const [, route = ""] = source.exec(readme) ?? [];
      mkdirSync(dirname(join(place, framework)), { recursive: true });
      writeFileSync(join(place, framework), route);
      writeFileSync(join(place, "package.json"), '{ "type": "module" }');
    }
    const serving = `import { serve } from "@hono/node-server";
import { GET } from "./${framework}";
const params = Promise.resolve({ id: "1" });
serve({ fetch: (request) => GET(request, { params }), port: 3000 });`;
    const compiled = name === "nest" ? compile(place, source) : name === "next" ? serving : undefined;
    const app = await start(t, server.port, source, {}, place, compiled);
    const get = (id: number) =>
      fetch(`${app.url}/item/${id}`, { headers: { "x-api-key": "k" } }).then(
        ({ status }) => status,
        () => 0,
      );
    await eventually(`it answers: ${app.said()}`, async () => (await get(1)) !== 0);
    const statuses = [await get(2), await get(3), await get(4), await get(5), await get(6), await get(7)];
    assert.deepEqual(statuses, [200, 200, 200, 200, 429, 429], app.said());
  });
}

/** What TypeScript makes of a program. */
function compile(place: string, source: RegExp): string {
  const [, program = ""] = source.exec(readme) ?? [];
  writeFileSync(join(place, "nest.mts"), program);
  const options =
    "--module nodenext --target es2022 --strict --skipLibCheck --experimentalDecorators --emitDecoratorMetadata --types node --allowJs";
  execFileSync(
    process.execPath,
    [join(folder, "node_modules/typescript/bin/tsc"), ...options.split(" "), "--outDir", "out", "nest.mts"],
    {
      cwd: place,
      stdio: ["ignore", "inherit", "inherit"],
    },
  );
  return readFileSync(join(place, "out/nest.mjs"), "utf8");
}

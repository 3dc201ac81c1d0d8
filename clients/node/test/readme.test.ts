/** The README's programs, as they stand there but for their ports. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { eventually, freePort, root, Server } from "./support/server.js";

const folder = join(root, "clients/node");

async function start(
  t: TestContext,
  port: number,
  sourceOf: RegExp,
  proxies = "10.0.0.0/8",
): Promise<{ url: string; isAlive: () => boolean; said: () => string }> {
  const [, source = ""] = sourceOf.exec(readFileSync(join(folder, "README.md"), "utf8")) ?? [];
  const http = await freePort();
  const program = source
    .replace("createClient()", `createClient({ url: "redis://127.0.0.1:${port}" })`)
    .replace("listen(3000)", `listen(${http}, "127.0.0.1")`)
    .replace("10.0.0.0/8", proxies);
  assert.match(program, new RegExp(`${port}[^]*${http}`));
  const place = mkdtempSync(join(tmpdir(), "redis-rl-readme-"));
  mkdirSync(join(place, "node_modules"));
  symlinkSync(folder, join(place, "node_modules/redis-rl"));
  for (const name of ["redis", "express", "express-rate-limit"]) {
    symlinkSync(join(folder, "node_modules", name), join(place, "node_modules", name));
  }
  writeFileSync(join(place, "server.mjs"), program);
  const child = spawn(process.execPath, ["server.mjs"], { cwd: place, stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.on("data", (data) => {
    said += data;
  });
  t.after(() => {
    child.kill("SIGKILL");
    rmSync(place, { recursive: true, force: true });
  });
  return { url: `http://127.0.0.1:${http}`, isAlive: () => child.exitCode === null, said: () => said };
}

test("the first program survives what happens to its server", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  const app = await start(t, server.port, /```js\n\/\/ server\.mjs\n([\s\S]*?)```/);
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
  await again.run("DEL", "app:ip:127.0.0.1");
  await again.run("LPUSH", "app:ip:127.0.0.1", "x");
  assert.equal(await status(), 500);
  await again.run("DEL", "app:ip:127.0.0.1");
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
    const app = await start(t, server.port, /## Behind proxies[\s\S]*?```js\n([\s\S]*?)```/, proxies);
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

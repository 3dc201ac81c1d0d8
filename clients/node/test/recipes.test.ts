/** The recipes of docs/OUTBOUND.md, as they stand there but for their ports and what they call. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { Queue } from "bullmq";
import WebSocket from "ws";
import { eventually, freePort, root, Server } from "./support/server.js";

const page = readFileSync(join(root, "docs/OUTBOUND.md"), "utf8");
const folder = join(root, "clients/node");

/** Starts a recipe with a few lines behind it; resolves with what it has printed, line by line. */
function start(t: TestContext, name: string, changes: Record<string, string>, behind = ""): string[] {
  const place = mkdtempSync(join(tmpdir(), "redis-rl-recipe-"));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  mkdirSync(join(place, "node_modules"));
  symlinkSync(folder, join(place, "node_modules/redis-rl"));
  for (const each of readdirSync(join(folder, "node_modules"))) {
    if (!each.startsWith(".")) symlinkSync(join(folder, "node_modules", each), join(place, "node_modules", each));
  }
  let [, program = ""] = new RegExp(`\`\`\`js\\n// ${name}\\n([\\s\\S]*?)\`\`\``).exec(page) ?? [];
  assert.ok(program.split("\n").length <= 31, "at most thirty lines");
  for (const [old, changed] of Object.entries(changes)) {
    assert.ok(program.includes(old), old);
    program = program.replaceAll(old, changed);
  }
  writeFileSync(join(place, name), program + behind);
  const child = spawn(process.execPath, [name], { cwd: place, stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  const lines: string[] = [];
  let text = "";
  child.stdout.on("data", (data) => {
    text += data;
    lines.splice(0, lines.length, ...text.split("\n").slice(0, -1));
  });
  return lines;
}

async function redis(t: TestContext): Promise<Server> {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  return server;
}

const clientOf = ({ port }: Server) => `createClient({ url: "redis://127.0.0.1:${port}" })`;

test("fetch: the rate of several processes together, and a pause of all after Retry-After", async (t) => {
  const server = await redis(t);
  const calls: number[] = [];
  let refused = 0;
  const provider = createServer((_request, response) => {
    calls.push(performance.now());
    if (calls.length === 15) {
      refused = performance.now();
      response.writeHead(429, { "Retry-After": "2" }).end();
    } else response.end("done");
  });
  await new Promise<void>((resolve) => provider.listen(0, "127.0.0.1", resolve));
  t.after(() => provider.close());
  const { port } = provider.address() as AddressInfo;
  const behind = `
const answers = Array.from({ length: 20 }, () => limitedFetch("http://127.0.0.1:${port}").then(({ status }) => console.log(status)));
await Promise.all(answers);
process.exit();`;
  const changes = { "createClient()": clientOf(server), "95/second": "10/second" };
  const processes = [start(t, "outbound.mjs", changes, behind), start(t, "outbound.mjs", changes, behind)];
  await eventually("all are answered", () => processes.every((lines) => lines.length === 20));
  assert.ok(processes.every((lines) => lines.every((line) => line === "200")));
  assert.equal(calls.length, 41, "the one that was refused came again");
  const meanwhile = calls.filter((at) => at > refused + 300 && at < refused + 1900);
  assert.deepEqual(meanwhile, [], "all pause");
});

test("BullMQ: jobs are started at their turns, and keep no worker", async (t) => {
  const server = await redis(t);
  const connection = { host: "127.0.0.1", port: server.port, maxRetriesPerRequest: null };
  const queue = new Queue("notify", { connection });
  queue.on("error", () => {});
  t.after(() => queue.close());
  const behind = `
function callProvider(user) {
  console.log(user, Date.now());
}`;
  const changes = { "95/second": "5/second", localhost: "127.0.0.1", 6379: String(server.port) };
  const lines = start(t, "worker.mjs", changes, behind);
  await queue.addBulk(Array.from({ length: 15 }, (_, i) => ({ name: "notify", data: { user: `u${i}` } })));
  await eventually("all jobs are done", () => lines.length === 15);
  assert.equal(new Set(lines.map((line) => line.split(" ")[0])).size, 15, "each once");
  const times = lines.map((line) => Number(line.split(" ")[1])).sort((a, b) => a - b);
  assert.ok((times.at(-1) as number) - (times[0] as number) >= 1900, "at the rate: 5 in each of three seconds");
  assert.equal(
    await server.info("commandstats", "cmdstat_rl.sliding").then((text) => /calls=(\d+)/.exec(text)?.[1]),
    "15",
  );
});

test("ws: messages above the limit are told, and the connection is read no further", async (t) => {
  const server = await redis(t);
  const port = await freePort();
  const changes = { "createClient()": clientOf(server), "port: 3000": `port: ${port}`, "10/second": "3/5s" };
  start(t, "messages.mjs", changes);
  let socket: WebSocket | undefined;
  const heard: string[] = [];
  await eventually("it listens", async () => {
    socket = new WebSocket(`ws://127.0.0.1:${port}`);
    socket.on("message", (data) => heard.push(String(data)));
    return new Promise<boolean>((resolve) => {
      socket?.on("open", () => resolve(true)).on("error", () => resolve(false));
    });
  });
  t.after(() => socket?.terminate());
  for (let i = 0; i < 6; i++) socket?.send(String(i));
  await eventually("five are answered", () => heard.length >= 5);
  assert.deepEqual(
    heard.slice(0, 5).map((text) => (text.startsWith("echo") ? text : JSON.parse(text)["violated-policies"][0])),
    ["echo 0", "echo 1", "echo 2", "5s", "echo 4"],
  );
});

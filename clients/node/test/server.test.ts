/** How the limiter finds out in which form the server takes the commands, and notices that it has changed. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { type Mode, Limiter, sliding, UnsupportedServerError } from "redis-rl";
import { clients, type OpenClient } from "./support/clients.js";
import { modes, modulePath, Server, type ServerOptions } from "./support/server.js";

const [nodeRedis, ioredis] = [clients[0], clients[3]];
const rule = sliding("10/minute");

async function start(t: TestContext, options: ServerOptions): Promise<[Server, OpenClient]> {
  const server = await Server.start(options);
  const open = (await nodeRedis?.open(server.port)) as OpenClient;
  t.after(async () => {
    open.close();
    await server.stop();
  });
  return [server, open];
}

async function calls(server: Server, command: string): Promise<number> {
  return Number(/calls=(\d+)/.exec(await server.info("commandstats", `cmdstat_${command}`))?.[1] ?? 0);
}

for (const mode of modes) {
  test(`a crowd of first calls: ${mode}`, async (t) => {
    const [server, { client }] = await start(t, { mode });
    const limiter = new Limiter(client);
    assert.equal(limiter.mode, undefined);
    const results = await Promise.all(Array.from({ length: 100 }, () => limiter.hit("crowd", rule)));
    assert.equal(results.filter(({ allowed }) => allowed).length, 10);
    assert.equal(limiter.mode, mode);
    assert.ok((await calls(server, "function\\|load")) <= 1, "one of them loads the library");
    assert.ok((await calls(server, "eval")) <= 1, "one of them sends the script");
  });
}

test("the library is gone, and comes back; the module comes", async (t) => {
  const [server, { client }] = await start(t, {});
  const limiter = new Limiter(client);
  const used = async () => (await limiter.hit("k", rule)).used;
  assert.equal(await used(), 1);
  await server.run("FUNCTION", "FLUSH");
  assert.equal(await used(), 2);
  assert.equal(limiter.mode, "functions");
  await server.run("FUNCTION", "FLUSH");
  await server.run("MODULE", "LOAD", modulePath());
  assert.equal(await used(), 3, "the key carries on");
  assert.equal(limiter.mode, "module");
});

test("a script that was flushed is sent again", async (t) => {
  const [server, { client }] = await start(t, { mode: "script" });
  const limiter = new Limiter(client);
  await limiter.hit("k", rule);
  await server.run("SCRIPT", "FLUSH");
  assert.equal((await limiter.hit("k", rule)).used, 2);
  assert.equal((await limiter.hit("k", rule)).used, 3);
  assert.equal(await calls(server, "eval"), 2);
});

test("after a failover to a server without the module", async (t) => {
  for (const kind of [nodeRedis, ioredis]) {
    const first = await Server.start({ mode: "module" });
    const open = (await kind?.open(first.port)) as OpenClient;
    const limiter = new Limiter(open.client);
    await limiter.hit("k", rule);
    await first.stop();
    const second = await Server.start({ port: first.port });
    t.after(() => second.stop());
    assert.equal((await limiter.hit("k", rule)).used, 1);
    assert.equal(limiter.mode, "functions");
    open.close();
  }
});

test("a user who may not call functions runs the script, and one who may do neither is told so", async (t) => {
  const [server] = await start(t, {});
  let users = 0;
  const as = async (...rules: string[]) => {
    const username = `user${++users}`;
    await server.run("ACL", "SETUSER", username, "on", "nopass", "~*", "&*", "+@all", ...rules);
    const { createClient } = await import("redis");
    const client = createClient({ username, password: "x", socket: { port: server.port, host: "127.0.0.1" } });
    client.on("error", () => {}); // The server ends before the client does.
    await client.connect();
    t.after(() => client.destroy());
    return new Limiter(client);
  };
  const noLoad = await as("-function");
  await noLoad.hit("k", rule);
  assert.equal(noLoad.mode, "script");
  const noFunctions = await as("-fcall", "-fcall_ro", "-function");
  await noFunctions.hit("k", rule);
  await noFunctions.peek("k", rule);
  assert.equal(noFunctions.mode, "script");
  const nothing = await as("-fcall", "-function", "-eval", "-evalsha");
  await assert.rejects(nothing.hit("k", rule), (error) => {
    assert.ok(error instanceof UnsupportedServerError);
    assert.equal(error.attempts.length, 3);
    assert.match(error.message, /unknown command.*NOPERM.*NOPERM/);
    return true;
  });
});

test("somebody else's library of the same name is left alone", async (t) => {
  const [server, { client }] = await start(t, {});
  const theirs = "#!lua name=rl\nredis.register_function('theirs', function() return 7 end)";
  await server.run("FUNCTION", "LOAD", theirs);
  const limiter = new Limiter(client);
  await limiter.hit("k", rule);
  assert.equal(limiter.mode, "script");
  assert.equal(await server.run("FCALL", "theirs", 0), 7);
});

test("a form can be prescribed", async (t) => {
  const [, { client }] = await start(t, { mode: "module" });
  let used = 0;
  for (const mode of ["functions", "script", "module"] satisfies Mode[]) {
    const limiter = new Limiter(client, { mode });
    assert.equal((await limiter.hit("k", rule)).used, ++used);
    assert.equal(limiter.mode, mode);
  }
  const [, plain] = await start(t, {});
  await assert.rejects(new Limiter(plain.client, { mode: "module" }).hit("k", rule), UnsupportedServerError);
});

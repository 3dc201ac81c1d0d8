/** How the limiter finds out in which form the server takes the commands, and notices that it has changed. */

import assert from "node:assert/strict";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { type Connection, Limiter, type Mode, sliding, UnsupportedServerError } from "redis-rl";
import { type ClientKind, clients, type OpenClient } from "./support/clients.js";
import { eventually, modes, modulePath, root, Server, type ServerOptions } from "./support/server.js";

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
    const limiter = new Limiter(client, { timeout: 10_000 });
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
  const limiter = new Limiter(client, { timeout: 10_000 });
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
  const limiter = new Limiter(client, { timeout: 10_000 });
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
    const limiter = new Limiter(open.client, { timeout: 10_000 });
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
    return new Limiter(client, { timeout: 10_000 });
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
  const limiter = new Limiter(client, { timeout: 10_000 });
  await limiter.hit("k", rule);
  assert.equal(limiter.mode, "script");
  assert.equal(await server.run("FCALL", "theirs", 0), 7);
});

test("a form can be prescribed", async (t) => {
  const [, { client }] = await start(t, { mode: "module" });
  let used = 0;
  for (const mode of ["functions", "script", "module"] satisfies Mode[]) {
    const limiter = new Limiter(client, { mode, timeout: 10_000 });
    assert.equal((await limiter.hit("k", rule)).used, ++used);
    assert.equal(limiter.mode, mode);
  }
  const [, plain] = await start(t, {});
  await assert.rejects(new Limiter(plain.client, { mode: "module" }).hit("k", rule), UnsupportedServerError);
});

/** Lets a minute pass for the package, which measures time by this clock. */
function aMinuteLater(t: TestContext): void {
  const { now } = performance;
  const later = now.call(performance) + 61_000;
  t.mock.method(performance, "now", () => Math.max(later, now.call(performance) + 61_000));
}

test("a module that is loaded later is used after a minute, without delaying a call", async (t) => {
  const [server, { client }] = await start(t, {});
  const limiter = new Limiter(client, { timeout: 10_000 });
  await limiter.hit("k", rule);
  await server.run("MODULE", "LOAD", modulePath());
  await limiter.hit("k", rule);
  assert.equal(limiter.mode, "functions", "not asked in every call");
  aMinuteLater(t);
  const limiters = [limiter, new Limiter(client, { timeout: 10_000 })];
  await eventually("the module is used", async () => {
    for (const each of limiters) await each.hit("k", rule);
    return limiters.every(({ mode }) => mode === "module");
  });
});

test("after a reconnection the module is asked for at once", async (t) => {
  for (const kind of [nodeRedis, ioredis] as ClientKind[]) {
    const [server] = await start(t, {});
    const { client, close } = await kind.open(server.port);
    t.after(close);
    const limiter = new Limiter(client, { timeout: 10_000 });
    await limiter.hit("k", rule);
    await server.run("MODULE", "LOAD", modulePath());
    await server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    await eventually("the module is used", async () => {
      await limiter.hit("k", rule).catch(() => {});
      return limiter.mode === "module";
    });
  }
});

test("an older library is replaced, and a newer one never", async (t) => {
  const [server, { client }] = await start(t, {});
  const { library } = require(join(root, "clients/node/dist/lua.js"));
  const version = async () =>
    /-- Version (\d+)/.exec(JSON.stringify(await server.run("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE")))?.[1];
  const ours = Number(/-- Version (\d+)/.exec(library)?.[1]);
  await server.run("FUNCTION", "LOAD", library.replace(/-- Version \d+/, "-- Version 0"));
  const limiter = new Limiter(client, { mode: "functions" });
  await limiter.hit("k", rule);
  await eventually("it is replaced", async () => (await version()) === String(ours));
  await server.run("FUNCTION", "LOAD", "REPLACE", library.replace(/-- Version \d+/, "-- Version 99"));
  aMinuteLater(t);
  await limiter.hit("k", rule);
  const asked = await calls(server, "function\\|list");
  await eventually("it was asked for", async () => {
    await limiter.hit("k", rule);
    return (await calls(server, "function\\|list")) >= asked;
  });
  assert.equal(await version(), "99");
  const old =
    "#!lua name=rl\n-- The commands of redis-rl as functions.\nredis.register_function('rl_old', function() end)";
  await server.run("FUNCTION", "LOAD", "REPLACE", old);
  assert.equal((await limiter.hit("k", rule)).allowed, true, "one without the function is replaced by the call");
});

test("what the process is busy with counts for no deadline, and a server that is silent does", async () => {
  const burn = (ms: number) => {
    const until = performance.now() + ms;
    while (performance.now() < until);
  };
  // A reply that takes twenty turns of an event loop that is busy for 30 ms in each.
  const behind: Connection = {
    keyPrefix: "",
    async send(command) {
      if (command[0] === "RL.PEEK") return figures;
      for (let turn = 0; turn < 20; turn++) {
        await new Promise(setImmediate);
        burn(30);
      }
      return figures;
    },
  };
  const figures = Object.entries({
    allowed: 1,
    limit: 10,
    used: 1,
    remaining: 9,
    "retry-after-ms": 0,
    "next-after-ms": 1,
    "reset-after-ms": 1,
    "window-ms": 60_000,
    "at-ms": 1,
  }).flat();
  const limiter = new Limiter(behind, { mode: "module", timeout: 100 });
  assert.equal((await limiter.hit("k", rule)).allowed, true);
  const silent: Connection = { keyPrefix: "", send: () => new Promise(() => {}) };
  const waiting = new Limiter(silent, { mode: "module", timeout: 100, logger: { warn() {} } }).hit("k", rule);
  let over = false;
  const ended = assert.rejects(waiting, { name: "UnavailableError" }).finally(() => {
    over = true;
  });
  let turns = 0;
  while (!over) {
    burn(50);
    turns++;
    await new Promise(setImmediate);
  }
  await ended;
  assert.ok(turns < 60, `${turns}: it is given up after a second more and 20 turns, however busy the process is`);
});

test("what is not a client is refused where it is made", () => {
  class Bun {
    send() {}
    connect() {}
  }
  for (const wrong of [undefined, null, "redis://localhost", {}, new Bun(), 7]) {
    assert.throws(() => new Limiter(wrong as never), /must be one of node-redis or ioredis/, String(wrong));
  }
  // An URL in the client's place has a password.
  assert.throws(
    () => new Limiter("redis://:secret@localhost" as never),
    ({ message }: Error) => message.endsWith(", not a string") && !message.includes("secret"),
  );
  const client = { keyPrefix: "", send: async () => 1 };
  assert.throws(() => new Limiter(client, { mode: "function" as never }), /"functions"/);
  assert.throws(() => new Limiter(client, { timeout: 0 }), /timeout/);
  assert.throws(() => new Limiter(client, { whenUnavailable: "away" as never }), /whenUnavailable/);
  assert.throws(() => new Limiter(client, { whenUnavailable: "local", processes: 0 }), /processes/);
});

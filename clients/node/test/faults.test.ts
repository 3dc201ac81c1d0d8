/** What a caller gets when the server hangs, is gone, or comes back: deadlines, the circuit breaker, the policies. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer, type Server as HttpServer } from "node:http";
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createServer as createTlsServer } from "node:tls";
import { inspect, promisify } from "node:util";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { Cluster as IoredisCluster, Redis } from "ioredis";
import { Redis as Redis5 } from "ioredis5";
import { createClient, createCluster as createCluster6 } from "redis";
import { Limiter, LostReplyError, lease, type RedisClient, sliding, UnavailableError } from "redis-rl";
import { expressRateLimitStore } from "redis-rl/express-rate-limit";
import { createCluster as createCluster5 } from "redis5";
import { type ClientKind, clients } from "./support/clients.js";
import { Cluster } from "./support/cluster.js";
import { eventually, freePort, root, Server } from "./support/server.js";

const rule = sliding("100/minute");
/** Far above every deadline in these tests, and far below what the clients would wait by themselves. */
const AT_MOST_MS = 5000;
const quiet = { warn: () => {} };

/** Clients as a user makes them who sets nothing. */
const byDefault: Record<string, (port: number) => { client: RedisClient; close(): void }> = {
  "node-redis": (port) => {
    const client = createClient({ url: `redis://127.0.0.1:${port}` });
    client.on("error", () => {});
    client.connect().catch(() => {});
    return { client, close: () => client.destroy() };
  },
  ioredis: (port) => {
    const client = new Redis(port);
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
};

/** A server that takes connections and never says a word. */
async function mute(t: TestContext): Promise<number> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket.on("error", () => {}).resume());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return (server.address() as AddressInfo).port;
}

/** A server behind a line that takes its time. */
async function farAway(t: TestContext, port: number): Promise<number> {
  const sockets = new Set<Socket>();
  const line = createTcpServer((near) => {
    const far = connect(port, "127.0.0.1");
    for (const socket of [near, far]) sockets.add(socket.on("error", () => {}));
    near.pipe(far);
    far.on("data", (data) => setTimeout(() => near.write(data), 20));
  });
  line.listen(0, "127.0.0.1");
  await once(line, "listening");
  t.after(() => {
    line.close();
    for (const socket of sockets) socket.destroy();
  });
  return (line.address() as AddressInfo).port;
}

async function listen(t: TestContext, server: HttpServer): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

function block(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

/** The first calls of a process that is busy in each turn of its event loop, until they are answered. */
async function firstCallsOfABusyProcess(client: RedisClient): Promise<void> {
  const limiter = new Limiter(client, { timeout: 250 });
  const asked = Promise.all(Array.from({ length: 20 }, (_, i) => limiter.hit(`k${i}`, rule)));
  let turn = setImmediate(function busy() {
    block(300);
    turn = setImmediate(busy);
  });
  try {
    assert.ok((await asked).every(({ source }) => source === "server"));
  } finally {
    clearImmediate(turn);
  }
}

async function timed<T>(work: Promise<T>): Promise<[T, number]> {
  const start = performance.now();
  return [await work, performance.now() - start];
}

for (const [name, open] of Object.entries(byDefault)) {
  describe(name, () => {
    for (const where of ["a closed port", "a server that never answers"]) {
      test(`${where}: callers of the first moment each have their own deadline`, async (t) => {
        const port = where === "a closed port" ? await freePort() : await mute(t);
        const { client, close } = open(port);
        t.after(close);
        const limiter = new Limiter(client, { timeout: 200, logger: quiet });
        const [answers, ms] = await timed(
          Promise.allSettled(Array.from({ length: 50 }, (_, i) => limiter.hit(`k${i}`, rule))),
        );
        for (const answer of answers) {
          assert.equal(answer.status, "rejected");
          assert.ok(answer.reason instanceof UnavailableError, String(answer.reason));
        }
        assert.ok(ms < AT_MOST_MS, `${ms} ms`);
      });
    }

    test("a server that hangs: a deadline, then a pause without calls, and on when it is back", async (t) => {
      const server = await Server.start({ mode: "module" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      const lines: string[] = [];
      const logger = { warn: (line: string) => lines.push(line) };
      const limiter = new Limiter(client, { timeout: 300, name: "api", logger });
      await limiter.hit("k", rule);
      server.pause();
      await assert.rejects(limiter.hit("k", rule), LostReplyError);
      // Nothing is sent now, so that these cannot have been counted.
      const refused = await Promise.allSettled(Array.from({ length: 100 }, () => limiter.hit("k", rule)));
      for (const { status, reason } of refused as PromiseRejectedResult[]) {
        assert.equal(status, "rejected");
        assert.ok(reason instanceof UnavailableError && !(reason instanceof LostReplyError), String(reason));
      }
      server.resume();
      await eventually("a call gets through", () =>
        limiter.hit("k", rule).then(
          () => true,
          () => false,
        ),
      );
      const { used } = await limiter.peek("k", rule, { cost: 0 });
      assert.ok(used <= 3, `${used} of the calls were counted`);
      assert.equal(limiter.statistics.unavailable >= 101, true);
      await eventually("the log says so", async () => {
        await limiter.hit("k", rule);
        return lines.length >= 2;
      });
      assert.equal(lines.length, 2, lines.join("\n"));
      assert.match(lines[0] ?? "", /redis-rl \(api\): the server is unavailable/);
      assert.match(lines[1] ?? "", /available again/);
    });

    test("a process that was busy reads the replies before it gives up", async (t) => {
      const server = await Server.start({ mode: "module" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      const limiter = new Limiter(client, { timeout: 250 });
      await limiter.hit("k", rule);
      // What is written after the deadline needs its time to the server and back as well.
      const far = open(await farAway(t, server.port));
      t.after(far.close);
      const slow = new Limiter(far.client, { timeout: 250 });
      await slow.hit("k", rule);
      const one = slow.hit("k", rule);
      block(500);
      assert.equal((await one).used, 3);
      const asked = Promise.all(Array.from({ length: 300 }, (_, i) => limiter.hit(`k${i}`, rule)));
      block(700);
      assert.equal((await asked).length, 300);
    });

    test("the first calls of a process that is busy for seconds are answered", async (t) => {
      const server = await Server.start({ mode: "functions" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      await firstCallsOfABusyProcess(client);
    });

    test("a limiter connects before its first call", async (t) => {
      const server = await Server.start();
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      new Limiter(client);
      const connections = async () =>
        String(await server.run("CLIENT", "LIST"))
          .trim()
          .split("\n").length;
      await eventually(
        "there are the admin's, the client's and the limiter's",
        async () => (await connections()) === 3,
      );
    });

    test("passOnStoreError lets requests through while the server hangs", async (t) => {
      const server = await Server.start({ mode: "module" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      const app = express();
      const store = expressRateLimitStore(new Limiter(client, { logger: quiet }));
      app.use(
        rateLimit({ windowMs: 60_000, limit: 5, passOnStoreError: true, store, logger: { error() {}, warn() {} } }),
      );
      app.get("/", (_request, response) => void response.send("ok"));
      const url = await listen(t, createServer(app));
      assert.equal((await fetch(url)).status, 200);
      server.pause();
      for (let i = 0; i < 10; i++) {
        const [answer, ms] = await timed(fetch(url));
        assert.equal(answer.status, 200);
        assert.ok(ms < AT_MOST_MS, `${ms} ms`);
      }
      server.resume();
    });

    test("an error that stays is no failure of the server, and no policy turns it into allowed", async (t) => {
      const server = await Server.start({ mode: "module" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      await server.run("LPUSH", "list", "x");
      for (const whenUnavailable of ["open", "local", "closed"] as const) {
        const limiter = new Limiter(client, { whenUnavailable });
        for (let i = 0; i < 3; i++) await assert.rejects(limiter.hit("list", rule), /^[A-Za-z]*Error: WRONGTYPE/);
        assert.equal((await limiter.hit("fine", rule)).allowed, true);
      }
    });

    test("BUSY, OOM and READONLY are unavailable", async (t) => {
      const server = await Server.start({ mode: "module" });
      t.after(() => server.stop());
      const { client, close } = open(server.port);
      t.after(close);
      const limiter = new Limiter(client, { whenUnavailable: "open", logger: quiet });
      const closed = new Limiter(client, { logger: quiet });
      await limiter.hit("k", rule);
      for (const [begin, end, line] of [
        [["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], /OOM/],
        [["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"], /READONLY/],
      ] as const) {
        await server.run(...begin);
        await assert.rejects(closed.hit("other", rule), (error) => {
          assert.ok(error instanceof UnavailableError);
          assert.match(error.message, line);
          return true;
        });
        assert.equal((await limiter.hit("other", rule)).allowed, true);
        await server.run(...end);
        await sleep(1100);
        assert.equal((await closed.hit("k", rule)).allowed, true);
      }
    });
  });
}

test("a process that is told to stop does not wait for a connection that was given up", async (t) => {
  const port = await mute(t);
  const node = `const client = createClient({ socket: { port: ${port} } }); client.connect().catch(() => {});`;
  const io = `const client = new Redis(${port});`;
  // ioredis 5 takes two seconds by itself.
  for (const [library, open] of [
    ["ioredis", io],
    ["redis", node],
    ["redis5", node],
  ]) {
    const script = `
      const { Redis, createClient } = require("${library}");
      const { Limiter, sliding } = require("redis-rl");
      ${open}
      client.on("error", () => {});
      const limiter = new Limiter(client, { timeout: 100, logger: { warn() {} } });
      limiter.hit("k", sliding("5/minute")).catch(() => {
        limiter.close();
        client.destroy ? client.destroy() : client.disconnect();
        const told = performance.now();
        process.on("exit", () => console.log(performance.now() - told));
      });`;
    const { stdout } = await promisify(execFile)(process.execPath, ["-e", script], { cwd: join(root, "clients/node") });
    assert.ok(stdout !== "" && Number(stdout) < 1000, `${library}: ${stdout} ms`);
  }
});

test("ioredis: a wrong password is told, and does not stand in the error", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  await server.run("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all");
  const options = { username: "app", password: "wr0ngS3cret", lazyConnect: true };
  const cluster = new IoredisCluster([{ port: server.port, host: "127.0.0.1" }], {
    redisOptions: options,
    lazyConnect: true,
  });
  for (const client of [new Redis(server.port, options), new Redis5(server.port, options), cluster] as RedisClient[]) {
    (client as Redis).on("error", () => {});
    t.after(() => (client as Redis).disconnect());
    const lines: string[] = [];
    const limiter = new Limiter(client, { logger: { warn: (line) => lines.push(line) } });
    const error = await limiter.hit("k", rule).catch((error) => error);
    if (client !== cluster) assert.match(error.message, /WRONGPASS/);
    const seen = inspect([error, error.cause, limiter, lines], { depth: 20, showHidden: true });
    assert.ok(error instanceof Error && !seen.includes("wr0ngS3cret"), seen);
  }
});

test("local: the same limit in this process, divided by the processes", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  const open = await clients[0]?.open(server.port);
  t.after(() => open?.close());
  const limiter = new Limiter(open?.client as RedisClient, {
    timeout: 200,
    whenUnavailable: "local",
    processes: 4,
    logger: quiet,
  });
  const one = sliding("20/minute", "12/second");
  assert.equal((await limiter.hit("k", one)).used, 1);
  server.pause();
  const results = [];
  for (let i = 0; i < 10; i++) results.push(await limiter.hit("k", one));
  assert.deepEqual(
    results.map(({ allowed }) => allowed),
    [true, true, true, ...Array.from({ length: 7 }, () => false)],
  );
  const denied = results.at(-1);
  assert.deepEqual([denied?.limit, denied?.windowMs, denied?.each.length], [3, 1000, 2]);
  assert.ok((denied?.retryAfterMs ?? 0) > 0 && (denied?.retryAfterMs ?? 0) <= 1000);
  assert.equal((await limiter.hit("another", one)).allowed, true);
  server.resume();
  await eventually("the server decides again", async () => (await limiter.hit("k", one)).limit > 5);
});

test("local and open need no server at all, and closed says 503", async (t) => {
  const client = new Redis(await freePort()).on("error", () => {});
  t.after(() => client.disconnect());
  const logger = quiet;
  assert.equal((await new Limiter(client, { whenUnavailable: "open", logger }).hit("k", rule)).allowed, true);
  assert.equal((await new Limiter(client, { whenUnavailable: "local", logger }).hit("k", rule)).used, 1);
  await assert.rejects(new Limiter(client, { logger }).hit("k", rule), { name: "UnavailableError", status: 503 });
  const held = new Limiter(client, { whenUnavailable: "open", logger }).hold("k", lease(1, 60));
  await assert.rejects(held, UnavailableError);
});

test("a lease ends by the holder's clock while the server hangs, and the work's outcome stays", async (t) => {
  for (const [name, open] of Object.entries(byDefault)) {
    const server = await Server.start({ mode: "module" });
    t.after(() => server.stop());
    const { client, close } = open(server.port);
    t.after(close);
    const lines: string[] = [];
    const limiter = new Limiter(client, { timeout: 1500, logger: { warn: (line) => lines.push(line) } });
    await limiter.hit("warm", rule);
    const taken = performance.now();
    const result = await limiter.hold("k", lease(1, 2), async (held) => {
      assert.equal(held.lost, false);
      server.pause();
      await once(held.signal, "abort");
      assert.equal(held.lost, true, name);
      const after = performance.now() - taken;
      assert.ok(after >= 1950 && after < AT_MOST_MS, `${after} ms`);
      return "done";
    });
    assert.equal(result, "done");
    server.resume();
    const isBack = () =>
      limiter.peek("warm", rule).then(
        () => true,
        () => false,
      );
    await eventually("the server is back", isBack);
    const failed = limiter.hold("k2", lease(1, 60), async () => {
      server.pause();
      throw new Error("mine");
    });
    await assert.rejects(failed, /mine/);
    assert.ok(lines.some((line) => line.includes("could not be released")));
    server.resume();
  }
});

test("a cluster: one node that hangs does not keep others from answering", async (t) => {
  const cluster = await Cluster.start({ mode: "module" });
  t.after(() => cluster.stop());
  for (const kind of [clients[0], clients[3], clients[5]] as ClientKind[]) {
    const { client, close } = await kind.openCluster(cluster.ports);
    const limiter = new Limiter(client, { timeout: 400, logger: quiet });
    const keys = Array.from({ length: 60 }, (_, i) => `${kind.name}:${i}`);
    const patient = new Limiter(client, { timeout: 20_000 });
    await Promise.all(keys.map((key) => patient.hit(key, rule)));
    const [hung] = cluster.primaries;
    hung?.pause();
    const served = () =>
      Promise.all(
        keys.map((key) =>
          limiter.hit(key, rule).then(
            () => 1,
            () => 0,
          ),
        ),
      ).then((list) => list.reduce<number>((sum, one) => sum + one, 0));
    const [first, ms] = await timed(served());
    assert.ok(first >= 30 && first < 60, `${kind.name}: ${first} of 60`);
    assert.ok(ms < AT_MOST_MS, `${ms} ms`);
    assert.equal(await served(), first, `${kind.name}: those of the others still are`);
    hung?.resume();
    await eventually("all are served", async () => (await served()) === 60);
    close();
  }
});

test("a cluster: while one node hangs, the connections to the others stay", async (t) => {
  const cluster = await Cluster.start({ mode: "module" });
  t.after(() => cluster.stop());
  const [hung, ...others] = cluster.primaries;
  const keys = Array.from({ length: 60 }, (_, i) => `k${i}`);
  for (const kind of [clients[0], clients[3]] as ClientKind[]) {
    const { client, close } = await kind.openCluster(cluster.ports);
    const derives = client as unknown as { duplicate(...args: unknown[]): unknown };
    const duplicate = derives.duplicate.bind(client);
    let made = 0;
    derives.duplicate = (...args) => {
      made++;
      return duplicate(...args);
    };
    const patient = new Limiter(client, { timeout: 20_000 });
    await Promise.all(keys.map((key) => patient.hit(key, rule)));
    // Of those by which the limiter calls.
    const inUse = async () => {
      const lists = await Promise.all(others.map((node) => node.run("CLIENT", "LIST")));
      return lists.flatMap((list) => [...String(list).matchAll(/^id=(\d+) .* cmd=rl.sliding /gm)].map(([, id]) => id));
    };
    await eventually("those of the kind before are gone", async () => (await inUse()).length === others.length);
    const before = await inUse();
    hung?.pause();
    const limiter = new Limiter(client, { timeout: 400, logger: quiet });
    const first = made;
    try {
      while (made < first + 2) await Promise.allSettled(keys.map((key) => limiter.hit(key, rule)));
      assert.deepEqual(await inUse(), before, kind.name);
      hung?.resume();
      await eventually("all are served", async () => {
        const all = await Promise.allSettled(keys.map((key) => limiter.hit(key, rule)));
        return all.every(({ status }) => status === "fulfilled");
      });
    } finally {
      close();
    }
  }
});

test("a cluster: of the nodes that were named, one that hangs is left for the next", async (t) => {
  const cluster = await Cluster.start({ mode: "module", primaries: 1 });
  const { random } = Math;
  t.after(() => {
    Math.random = random;
    return cluster.stop();
  });
  // node-redis begins with the first.
  Math.random = () => 0;
  const ports = [await mute(t), ...cluster.ports];
  for (const makes of [createCluster6, createCluster5] as (typeof createCluster6)[]) {
    const client = makes({ rootNodes: ports.map((port) => ({ url: `redis://127.0.0.1:${port}` })) });
    client.on("error", () => {});
    client.connect().catch(() => {});
    const limiter = new Limiter(client, { timeout: 400, logger: quiet });
    const isServed = () =>
      limiter.hit("k", rule).then(
        ({ allowed }) => allowed,
        () => false,
      );
    await eventually("it is served", isServed);
    client.destroy();
  }
});

test("a cluster: the first calls of a process that is busy for seconds are answered", async (t) => {
  const cluster = await Cluster.start({ mode: "functions" });
  t.after(() => cluster.stop());
  for (const kind of [clients[0], clients[3]] as ClientKind[]) {
    const { client, close } = await kind.openCluster(cluster.ports);
    t.after(close);
    await firstCallsOfABusyProcess(client);
  }
});

test("a cluster: after a failover the replica's keys are served, and no call is counted twice", async (t) => {
  const cluster = await Cluster.start({ mode: "module", replicas: true });
  t.after(() => cluster.stop());
  const kinds = [clients[0], clients[3], clients[5]] as ClientKind[];
  const open = await Promise.all(kinds.map((kind) => kind.openCluster(cluster.ports)));
  t.after(() => {
    for (const { close } of open) close();
  });
  const limiters = open.map(({ client }, i) => new Limiter(client, { prefix: `${i}:`, timeout: 1000, logger: quiet }));
  const keys = Array.from({ length: 30 }, (_, i) => `k${i}`);
  const asked = new Map<string, number>();
  const served = async (limiter: Limiter, i: number) => {
    const answers = await Promise.allSettled(
      keys.map(async (key) => {
        asked.set(`${i}${key}`, (asked.get(`${i}${key}`) ?? 0) + 1);
        const { used } = await limiter.hit(key, rule);
        assert.ok(used <= (asked.get(`${i}${key}`) ?? 0), "counted more often than asked");
      }),
    );
    return answers.every(({ status }) => status === "fulfilled");
  };
  await eventually("all are served", async () => (await Promise.all(limiters.map(served))).every(Boolean));
  for (const primary of cluster.primaries) await primary.run("WAIT", 1, 10_000);
  cluster.primaries[0]?.kill();
  for (const [i, limiter] of limiters.entries()) {
    await eventually(`${kinds[i]?.name}: all are served again`, async () => {
      const all = await served(limiter, i);
      if (!all) await sleep(200);
      return all;
    });
  }
});

test("a certificate that fails is a connection that was not made", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "redis-rl-"));
  t.after(() => rm(folder, { recursive: true }));
  const [key, cert] = [join(folder, "key"), join(folder, "cert")];
  const made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost".split(" ");
  try {
    await promisify(execFile)("openssl", [...made, "-keyout", key, "-out", cert]);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    return t.skip("the program openssl is not here");
  }
  const server = createTlsServer({ key: await readFile(key), cert: await readFile(cert) });
  server.on("tlsClientError", () => {}).listen(0, "127.0.0.1");
  t.after(() => server.close());
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const ioredis = new Redis({ port, tls: {} });
  const node = createClient({ url: `rediss://127.0.0.1:${port}` });
  for (const client of [ioredis, node]) client.on("error", () => {});
  node.connect().catch(() => {});
  t.after(() => {
    ioredis.disconnect();
    node.destroy();
  });
  for (const client of [ioredis, node]) {
    const limiter = new Limiter(client, { timeout: 10_000, logger: quiet });
    await assert.rejects(limiter.hit("k", rule), (error: Error) => {
      assert.ok(error instanceof UnavailableError && /certificate/.test(error.message), String(error));
      return true;
    });
  }
});

for (const ends of ["fails", "succeeds", "fails later than the next one succeeds"]) {
  test(`a cluster: who waits for a connection that was given up gets the next one; the old attempt ${ends}`, async () => {
    const attempts: { succeed: () => void; fail: (error: Error) => void }[] = [];
    const client = (index: number) => ({
      nodeByAddress: new Map(),
      isOpen: true,
      isReady: true,
      sendCommand: async () => index,
      destroy: () => {},
      duplicate: () => client(attempts.length),
      connect: () =>
        new Promise<void>((succeed, fail) => {
          attempts.push({ succeed, fail });
        }),
    });
    const { connection } = new Limiter(client(-1));
    const reply = connection.send(["PING"], {
      key: "k",
      readOnly: true,
      signal: new AbortController().signal,
    });
    connection.renew?.();
    const [first, second] = attempts;
    if (ends === "fails") first?.fail(new Error("it was destroyed"));
    if (ends === "succeeds") first?.succeed();
    await sleep(1);
    second?.succeed();
    await sleep(1);
    first?.fail(new Error("it was destroyed"));
    assert.equal(await reply, 1);
  });
}

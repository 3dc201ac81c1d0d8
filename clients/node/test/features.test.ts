/** What the limiter does beyond one call: waiting, remembered denials, leases for a while, the hook, the connections. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import {
  type Decision,
  DeniedError,
  fixed,
  Limiter,
  type LimiterOptions,
  lease,
  type RedisClient,
  sliding,
  throttle,
  UnavailableError,
} from "redis-rl";
import { expressRateLimitStore } from "redis-rl/express-rate-limit";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { clients, type OpenClient } from "./support/clients.js";
import { eventually, root, Server } from "./support/server.js";

// biome-ignore lint/suspicious/noExplicitAny: what is not exported is not typed.
const internal = (name: string): any => require(join(root, "clients/node/dist", `${name}.js`));

const HOUR = 3_600_000;

/** A limiter that remembers denials, as adapters ask it. */
function remembering(client: RedisClient, options: LimiterOptions = {}): Limiter {
  const limiter = new Limiter(client, options);
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  const ask = (limiter as any).ask.bind(limiter);
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  limiter.hit = (key: any, rule: any, more: any = {}) => ask([{ key, rule, ...more }], { denyCache: true });
  return limiter;
}

describe("features", () => {
  let server: Server;
  let open: OpenClient;
  before(async () => {
    server = await Server.start({ mode: "module" });
    open = (await clients[0]?.open(server.port)) as OpenClient;
  });
  after(async () => {
    open.close();
    await server.stop();
  });
  const calls = async (name: string) =>
    Number(/calls=(\d+)/.exec(await server.info("commandstats", `cmdstat_${name}`))?.[1] ?? 0);

  test("wait: sleeps the exact wait, and gives up at once where there is no time for it", async () => {
    const limiter = new Limiter(open.client);
    const rule = sliding("2/300ms");
    await limiter.hit("w", rule);
    await limiter.hit("w", rule);
    const before = await calls("rl.sliding");
    const start = performance.now();
    const result = await limiter.wait("w", rule, { timeout: 20_000 });
    assert.equal(result.allowed, true);
    assert.ok(performance.now() - start > 150, "it has waited");
    // A timer may fire a millisecond early, by which the server denies once more.
    assert.ok((await calls("rl.sliding")) - before <= 4);
    const long = sliding("1/hour");
    await limiter.hit("w:long", long);
    const denied = await limiter.wait("w:long", long, { timeout: 60_000 });
    // A minute before it fits the same call would have got a turn.
    assert.equal(denied.allowed, false);
    assert.ok(Math.abs((denied.retryAfterMs ?? 0) - 3_540_000) < 30_000, `${denied.retryAfterMs}`);
    assert.equal((await limiter.wait("w:never", sliding("0/s"))).retryAfter, undefined);
    const controller = new AbortController();
    const waiting = limiter.wait("w:long", long, { signal: controller.signal });
    setTimeout(() => controller.abort(new Error("closing")), 20);
    await assert.rejects(waiting, /closing/);
  });

  test("a wrong argument fails with a sentence that names it", async () => {
    const limiter = new Limiter(open.client);
    const other = sliding("5/minute") as never;
    await assert.rejects(limiter.acquire("k", other), /a lease is made by lease\(\), and not by sliding\(\)/);
    await assert.rejects(limiter.hold("k", other), /a lease is made by lease\(\), and not by sliding\(\)/);
    await assert.rejects(limiter.hold("k", "3" as never), /a rule is made by sliding.*and is not "3"/);
    await assert.rejects(limiter.all({ key: "k" } as never), /all takes an array of { key, rule }, not /);
    await assert.rejects(limiter.all([{ key: "k" }] as never), /a rule is made by sliding.*and is not undefined/);
    await assert.rejects(limiter.all([undefined] as never), /a rule is made by sliding.*and is not undefined/);
    // It would be counted each time that it is asked for.
    const forced = { force: true };
    await assert.rejects(limiter.wait("k", sliding("5/minute", forced)), /the rule of a turn cannot be forced/);
    await assert.rejects(limiter.wait("k", fixed("5/minute", forced)), /the rule of a wait cannot be forced/);
    for (const key of [undefined, 5, {}] as never[]) {
      await assert.rejects(limiter.hit(key, sliding("5/minute")), /a key is a string or bytes, and is not/);
      await assert.rejects(limiter.reset(key), /a key is a string or bytes, and is not/);
      await assert.rejects(limiter.acquire("k", lease(1, 60), { holder: key ?? (7 as never) }), /a holder is a string/);
      const wrong = key === undefined ? /a lease needs a holder/ : /a holder is a string or bytes, and is not/;
      await assert.rejects(limiter.release("k", key), wrong);
    }
    assert.equal((await limiter.peek("k", sliding("5/minute"), { cost: 0 })).used, 0);
    for (const wrong of [open.client, undefined]) {
      assert.throws(() => expressRateLimitStore(wrong as never), /the store needs a Limiter/);
      assert.throws(() => fastifyRateLimitStore(wrong as never), /the store needs a Limiter/);
    }
  });

  test("a crowd that waits gets in at the rate, and nobody twice", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const rule = sliding("5/200ms");
    const results = await Promise.all(Array.from({ length: 20 }, () => limiter.wait("crowd", rule)));
    assert.ok(results.every(({ allowed }) => allowed));
    const times = results.map(({ atMs }) => atMs).sort((a, b) => a - b);
    for (let i = 0; i + 5 < times.length; i++) {
      assert.ok((times[i + 5] as number) - (times[i] as number) >= 200, "no window holds more than five");
    }
  });

  test("a denial is remembered for the same or a heavier request by the same rule, and for nobody else", async () => {
    const limiter = remembering(open.client);
    const rule = sliding("10/hour");
    await limiter.hit("d", rule, { cost: 8 });
    const first = await limiter.hit("d", rule, { cost: 5 });
    const sent = () => calls("rl.sliding");
    const asked = await sent();
    const again = await limiter.hit("d", rule, { cost: 5 });
    const heavier = await limiter.hit("d", rule, { cost: 6 });
    assert.equal(await sent(), asked, "denied in the process");
    for (const denied of [again, heavier]) {
      assert.deepEqual([denied.allowed, denied.used, denied.limit, denied.remaining], [false, 8, 10, 2]);
      assert.ok((denied.retryAfterMs ?? 0) <= (first.retryAfterMs ?? 0));
      assert.ok(denied.atMs >= first.atMs);
      assert.equal(denied.problem()?.["violated-policies"][0], "3600s");
    }
    assert.equal((await limiter.hit("d", rule, { cost: 2 })).allowed, true, "a lighter one is asked for");
    await limiter.hit("d", rule, { cost: 5, force: true });
    await limiter.hit("d", sliding("11/hour"), { cost: 5 });
    await limiter.hit("e", rule, { cost: 5 });
    assert.equal(await sent(), asked + 4, "neither a forced one nor another rule or key is denied from memory");
    assert.equal(limiter.statistics.deniedFromMemory, 2);
    await limiter.hit("e", rule, { cost: 6 });
    assert.equal(
      (await limiter.hit("e", rule, { cost: 11 })).retryAfter,
      undefined,
      "one that never fits is not told to wait",
    );
    // Each of these gives something back.
    await limiter.hit("f", rule, { cost: 10 });
    for (const giveBack of [() => limiter.refund("f", rule, { cost: 9 }), () => limiter.reset("f")]) {
      assert.equal((await limiter.hit("f", rule, { cost: 9 })).allowed, false);
      await giveBack();
      const { used, allowed } = await limiter.hit("f", rule, { cost: 9 });
      assert.deepEqual([used, allowed], [allowed && used === 9 ? 9 : 10, true]);
    }
  });

  test("what another process gives back is seen within a second, and never later than the wait", async () => {
    const [one, other] = [remembering(open.client), new Limiter(open.client, { timeout: 10_000 })];
    const rule = sliding("1/hour");
    await one.hit("o", rule);
    assert.equal((await one.hit("o", rule)).allowed, false);
    await other.reset("o");
    const start = performance.now();
    await eventually("it is seen", async () => (await one.hit("o", rule)).allowed);
    assert.ok(performance.now() - start < 5000);
    const short = sliding("1/100ms");
    await one.hit("s", short);
    const { retryAfterMs = 0 } = await one.hit("s", short);
    await sleep(retryAfterMs + 5);
    assert.equal((await one.hit("s", short)).allowed, true);
  });

  test("a flood costs a call where a denial is over its second: one asks again, and the others wait for what it is told", async () => {
    const limiter = remembering(open.client, { timeout: 10_000 });
    const rule = sliding("10/hour");
    const crowd = () => Promise.all(Array.from({ length: 100 }, () => limiter.hit("crowd", rule)));
    await limiter.hit("crowd", rule, { cost: 10 });
    assert.equal((await limiter.hit("crowd", rule)).allowed, false);
    const asked = await calls("rl.sliding");
    await sleep(1050);
    assert.ok((await crowd()).every(({ allowed }) => !allowed));
    assert.equal(await calls("rl.sliding"), asked + 1);
    await sleep(1050);
    await server.run("DEL", limiter.keyOf("crowd") as string);
    assert.equal((await crowd()).filter(({ allowed }) => allowed).length, 10, "what another process gave back");
  });

  test("a denial is believed a second from before it was asked for; an error is told to all that waited, and then one asks", async () => {
    let [reply, sent]: [() => Promise<unknown>, number] = [async () => [], 0];
    const send = () => {
      sent++;
      return reply();
    };
    const limiter = remembering({ keyPrefix: "", send }, { mode: "module", timeout: 10_000, logger: { warn() {} } });
    const waits = ["retry-after-ms", "next-after-ms", "reset-after-ms", "window-ms"].flatMap((name) => [name, HOUR]);
    const denial = ["allowed", 0, "limit", 1, "used", 1, "remaining", 0, ...waits, "at-ms", 1];
    const hits = (count: number) =>
      Promise.allSettled(Array.from({ length: count }, () => limiter.hit("k", sliding("1/hour"))));
    reply = () => sleep(600, denial);
    await hits(1);
    sent = 0;
    await sleep(500);
    await hits(10);
    assert.equal(sent, 1, "1100 ms after it was asked for");
    await sleep(500);
    reply = () => sleep(10).then(() => Promise.reject(new Error("ERR broken")));
    const ended = await hits(10);
    assert.deepEqual([sent, ended.filter(({ status }) => status === "rejected").length], [2, 10]);
    reply = async () => denial;
    await hits(10);
    assert.equal(sent, 3);
  });

  test("denials are remembered within a bound of entries and of bytes; the oldest make room", () => {
    const { DenialCache } = internal("denials");
    const { DENY_CACHE } = internal("defaults");
    const figures = { allowed: false, limit: 1, used: 1, remaining: 0, retryAfterMs: 9000, nextAfterMs: 9000 };
    const window = { ...figures, resetAfterMs: 9000, windowMs: 9000, atMs: 1 };
    for (const [windows, length, least, most] of [
      [1, 1, DENY_CACHE.entries, DENY_CACHE.entries],
      [16, 128, 1000, 2000],
    ] as const) {
      const cache = new DenialCache();
      const rule = sliding("1/9s");
      const now = performance.now();
      const keys = Array.from({ length: DENY_CACHE.entries + 500 }, (_, i) => `k${i}`.padEnd(length));
      for (const key of keys) cache.remember(key, rule, 1, Array(windows).fill(window), now);
      const kept = keys.filter((key) => cache.find(key, rule, 1, now)).length;
      assert.ok(kept >= least && kept <= most, `${kept} of ${windows} windows`);
      assert.ok(cache.find(keys.at(-1), rule, 1, now), "the newest");
      for (const key of keys) cache.forget(key);
      cache.remember("again", rule, 1, [window], now);
      assert.ok(cache.find("again", rule, 1, now), "what was forgotten takes no room");
    }
  });

  test("hold: waits for a place, and an abort ends the wait", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const rule = lease(1, 60);
    const first = await limiter.hold("h", rule);
    await assert.rejects(limiter.hold("h", rule), DeniedError);
    await assert.rejects(limiter.hold("h", rule, { timeout: 60 }), DeniedError);
    const second = limiter.hold("h", rule, () => "in", { timeout: 20_000 });
    const controller = new AbortController();
    const third = limiter.hold("h", rule, { timeout: 20_000, signal: controller.signal });
    controller.abort(new Error("closing"));
    await assert.rejects(third, /closing/);
    assert.equal(await first.release(), true);
    assert.equal(await second, "in");
    assert.deepEqual([first.lost, first.signal.aborted], [false, false], "what is released is not lost");
  });

  test("hold: a wait that ends while a call is under way is a denial", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const first = await limiter.hold("ends", lease(1, 60));
    const asked = await calls("rl.acquire");
    const second = limiter.hold("ends", lease(1, 60), { timeout: 1500 });
    const refused = assert.rejects(second, DeniedError);
    await eventually("it has asked", async () => (await calls("rl.acquire")) > asked);
    await server.run("CLIENT", "PAUSE", 4000, "WRITE");
    await refused;
    await server.run("CLIENT", "UNPAUSE");
    assert.equal(await first.release(), true);
  });

  test("a lease that is not renewed is lost at its end", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const held = await limiter.hold("nr", lease(1, 0.15), { renew: false });
    await once(held.signal, "abort");
    assert.equal(held.lost, true);
    assert.equal(await held.renew(), false);
    const busy = await limiter.hold("busy", lease(1, 0.05), { renew: false });
    const until = performance.now() + 60;
    while (performance.now() < until);
    assert.equal(busy.lost, true, "also where no timer has run");
  });

  test("acquire makes a holder", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const { holder, allowed } = await limiter.acquire("a", lease(1, 60));
    assert.equal(allowed, true);
    assert.equal(await limiter.release("a", holder as string), 1);
    assert.equal((await limiter.hit("a", lease(1, 60), { holder: "me" })).used, 1);
  });

  test("all: a list whose length is not known, and a rule that only checks", async () => {
    const limiter = new Limiter(open.client, { timeout: 10_000 });
    const list = ["x", "y"].map((key) => ({ key: `all:${key}`, rule: fixed("1/hour") }));
    assert.equal((await limiter.all(list)).allowed, true);
    assert.equal((await limiter.all(list)).allowed, false);
    const checked = await limiter.all([{ key: "all:z", rule: sliding("1/hour"), cost: 0 }]);
    assert.deepEqual([checked.allowed, checked.each[0]?.used], [true, 0]);
  });

  test("the hook gets every decision, and cannot break one", async () => {
    const seen: Decision[] = [];
    const lines: string[] = [];
    const limiter = remembering(open.client, {
      name: "api",
      prefix: "hooked:",
      logger: { warn: (line) => lines.push(line) },
      onDecision(decision) {
        seen.push(decision);
        if (seen.length === 1) throw new Error("mine");
      },
    });
    const rule = sliding("1/hour");
    await limiter.hit("hook", rule);
    await limiter.hit("hook", rule);
    await limiter.hit("hook", rule);
    await limiter.all([{ key: "hook:t", rule: throttle("5/minute") }]);
    assert.deepEqual(
      seen.map(({ limiter, command, key, allowed, source }) => [limiter, command, key, allowed, source]),
      [
        ["api", "sliding", "hook", true, "server"],
        ["api", "sliding", "hook", false, "server"],
        ["api", "sliding", "hook", false, "memory"],
        ["api", "all", "hook:t", true, "server"],
      ],
    );
    assert.ok(seen.every(({ durationMs }) => durationMs >= 0));
    assert.deepEqual(lines, ["redis-rl (api): onDecision failed: Error: mine"]);
    assert.deepEqual(limiter.statistics, { allowed: 2, denied: 2, deniedFromMemory: 1, unavailable: 0 });
  });

  for (const kind of clients.filter(({ name }) => name.startsWith("ioredis"))) {
    test(`${kind.name}: its own connection has the user's options, and ends with the user's client`, async () => {
      await server.run("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all");
      const clientList = async () => String(await server.run("CLIENT", "LIST"));
      const { client, close } = await kind.open(server.port);
      const own = (client as Redis).duplicate({
        username: "app",
        password: "secret",
        db: 3,
        connectionName: "mine",
        keyPrefix: "pre:",
      });
      close();
      own.on("error", () => {});
      const limiter = new Limiter(own);
      await limiter.hit("k", sliding("5/minute"));
      const rows = (await clientList()).split("\n").filter((row) => row.includes("name=mine"));
      assert.equal(rows.length, 2, "the user's and ours");
      assert.ok(rows.every((row) => row.includes("user=app") && row.includes("db=3")));
      await server.run("SELECT", 3);
      assert.equal(await server.run("EXISTS", "pre:k"), 1);
      await server.run("SELECT", 0);
      await own.quit();
      await eventually("both are closed", async () => !(await clientList()).includes("name=mine"));
      await assert.rejects(limiter.hit("k", sliding("5/minute")), /client is closed/);
    });
  }

  for (const kind of clients) {
    test(`${kind.name}: its own connection ends with the user's client, also while it is being made`, async (t) => {
      const apart = await Server.start({ mode: "module" });
      t.after(() => apart.stop());
      const connections = async () => String(await apart.run("CLIENT", "LIST")).split("\n").length;
      const before = await connections();
      for (const turns of [0, 1, 2, 5]) {
        const { client, close } = await kind.open(apart.port);
        new Limiter(client);
        for (let i = 0; i < turns; i++) await new Promise((resolve) => setImmediate(resolve));
        close();
      }
      // A late one would come until then.
      await sleep(100);
      await eventually("all are closed", async () => (await connections()) === before);
    });

    test(`${kind.name}: time-outs of the user's own that are shorter than the limiter's end no call of it`, async (t) => {
      const { client, close } = await kind.open(server.port, { commandTimeout: 50, socketTimeout: 50 } as object);
      t.after(close);
      const limiter = new Limiter(client, { timeout: 10_000 });
      await limiter.hit("own", sliding("5/minute"));
      server.pause();
      const late = limiter.hit("own", sliding("5/minute"));
      late.catch(() => {});
      await sleep(200);
      server.resume();
      assert.equal((await late).used, 2);
      await limiter.reset("own");
    });

    test(`${kind.name}: a queue that is short for the user's own calls is no limit of ours`, async (t) => {
      const { client, close } = await kind.open(server.port, { commandsQueueMaxLength: 4 } as object);
      t.after(close);
      const limiter = new Limiter(client, { timeout: 10_000 });
      const crowd = Array.from({ length: 64 }, () => limiter.hit("queue", sliding("32/minute")));
      assert.equal((await Promise.all(crowd)).filter(({ allowed }) => allowed).length, 32);
      await limiter.reset("queue");
    });

    test(`${kind.name}: the calls of one turn leave in one write`, async () => {
      const { client, close } = await kind.open(server.port);
      const limiter = new Limiter(client);
      await limiter.hit("turn", sliding("100/minute"));
      const reads = async () => Number(await server.info("stats", "total_reads_processed"));
      const before = await reads();
      await Promise.all(Array.from({ length: 64 }, () => limiter.hit("turn", sliding("100/minute"))));
      const after = await reads();
      assert.ok(after - before < 16, `the server has read ${after - before} times`);
      close();
    });
  }

  test("ioredis: a stopped clock of an app's tests keeps no call back", async (t) => {
    const redis = new Redis(server.port);
    const limiter = new Limiter(redis);
    await limiter.hit("clock", sliding("5/minute"));
    t.mock.timers.enable({ apis: ["setImmediate"] });
    const { used } = await limiter.hit("clock", sliding("5/minute"));
    t.mock.timers.reset();
    // As Jest and Vitest leave it, whose stopped clock has nothing but the time.
    const real = Object.getOwnPropertyDescriptor(globalThis, "performance") as PropertyDescriptor;
    t.after(() => Object.defineProperty(globalThis, "performance", real));
    const stopped = { now: () => 1, eventLoopUtilization: () => undefined };
    Object.defineProperty(globalThis, "performance", { value: stopped, configurable: true });
    const again = await limiter.hit("clock", sliding("5/minute"));
    redis.disconnect();
    assert.deepEqual([used, again.used], [2, 3]);
  });

  test("calls are seen by what watches the client library", async () => {
    const { channel } = await import("node:diagnostics_channel");
    const commands: string[] = [];
    const watch = (message: unknown) => commands.push(String((message as { command?: string }).command));
    const started = channel("tracing:ioredis:command:start");
    started.subscribe(watch);
    const redis = new Redis(server.port);
    await new Limiter(redis, { mode: "module" }).hit("seen", sliding("5/minute"));
    started.unsubscribe(watch);
    redis.disconnect();
    assert.ok(
      commands.some((command) => command.toLowerCase() === "rl.sliding"),
      commands.join(),
    );
  });
});

test("a denial is believed for a second, doubted until its wait is over, and refuted by what was allowed", () => {
  const { DenialCache } = require(join(root, "clients/node/dist/denials.js"));
  const cache = new DenialCache();
  const rule = sliding("1/minute");
  const figures = { allowed: false, retryAfterMs: 60_000, nextAfterMs: 60_000, resetAfterMs: 60_000, atMs: 1 };
  const now = performance.now();
  cache.remember("k", rule, 1, [figures], now);
  const found = (ms: number, cost = 1) => now + ms < cache.find("k", rule, cost, now + ms)?.until;
  const doubted = (ms: number) => now + ms >= cache.find("k", rule, 1, now + ms)?.until;
  assert.deepEqual([found(0), found(999), found(1000)], [true, true, false]);
  assert.deepEqual([doubted(999), doubted(1000), doubted(59_999), doubted(60_000)], [false, true, true, false]);
  assert.ok(cache.find("k", rule, 1, now + 50_000), "for a call that had begun before it came");
  assert.equal(cache.find("k", rule, 1, now + 61_000), undefined);
  cache.remember("k", rule, 2, [figures], now);
  cache.refute("k", rule, 1);
  assert.equal(found(10, 2), true, "a lighter request that was allowed refutes nothing");
  cache.refute("k", rule, 2);
  assert.equal(found(10, 2), false);
});

const DENIED = Object.entries({
  allowed: 0,
  limit: 1,
  used: 1,
  remaining: 0,
  "retry-after-ms": 3_600_000,
  "next-after-ms": 3_600_000,
  "reset-after-ms": 3_600_000,
  "window-ms": 3_600_000,
  "at-ms": 1,
}).flat();

const ALLOWED = Object.entries({
  allowed: 1,
  limit: 1,
  used: 1,
  remaining: 0,
  "retry-after-ms": 0,
  "next-after-ms": 5000,
  "reset-after-ms": 5000,
  "window-ms": 60_000,
  "at-ms": 77,
}).flat();

test("what was known before an outage is no answer at its end: neither to the one that asks nor to those behind it", async () => {
  let asked = 0;
  const send = async ([name]: readonly unknown[]) => {
    if (name === "RL.ACQUIRE" && asked++ > 0) throw new UnavailableError("it is gone");
    return DENIED;
  };
  const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module", timeout: 10_000, logger: { warn() {} } });
  const waiting = [1, 2, 3].map(() => limiter.wait("k", lease(1, 3600), { timeout: 1200 }));
  for (const one of await Promise.allSettled(waiting)) {
    assert.ok(one.status === "rejected" && one.reason instanceof UnavailableError, JSON.stringify(one));
  }
});

test("a place that the last call of a wait may have taken is given back", async () => {
  const sent: unknown[] = [];
  const send = async ([name]: readonly unknown[]) => {
    sent.push(name);
    const isLast = name === "RL.ACQUIRE" && sent.filter((one) => one === name).length > 1;
    return name === "RL.RELEASE" ? 1 : isLast ? new Promise(() => {}) : DENIED;
  };
  const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module", timeout: 2000, logger: { warn() {} } });
  assert.equal((await limiter.wait("k", lease(1, 3600), { timeout: 300 })).allowed, false);
  await eventually("it is given back", () => sent.includes("RL.RELEASE"));
});

test("a lease whose reply is lost is given back where nobody knows its holder", async () => {
  for (const holder of [undefined, "me"]) {
    const sent: unknown[] = [];
    const send = async ([name]: readonly unknown[]) => {
      sent.push(name);
      return name === "RL.ACQUIRE" ? new Promise(() => {}) : name === "RL.RELEASE" ? 1 : DENIED;
    };
    const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module", timeout: 100, logger: { warn() {} } });
    await assert.rejects(
      limiter.acquire("k", lease(1, 3600), holder === undefined ? {} : { holder }),
      UnavailableError,
    );
    if (holder === undefined) await eventually("it is given back", () => sent.includes("RL.RELEASE"));
    else {
      await sleep(1500);
      assert.ok(!sent.includes("RL.RELEASE"), "it may have been a renewal");
    }
  }
});

test("what a caller has left is given back until that cannot succeed: its limiter is closed, or the server forbids it", async () => {
  for (const ends of ["closed", "forbidden"]) {
    let released = 0;
    const send = async ([name]: readonly unknown[]) => {
      if (name === "RL.ACQUIRE") return new Promise(() => {});
      if (name === "RL.RELEASE")
        throw new Error(`NOPERM no permissions to run the 'rl.release' command (${++released})`);
      return DENIED;
    };
    const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module", timeout: 50, logger: { warn() {} } });
    const release = limiter.release.bind(limiter);
    let asked = 0;
    limiter.release = (...args) => {
      asked++;
      return release(...args);
    };
    const leaving = new AbortController();
    const holding = limiter.hold("k", lease(1, 3600), { signal: leaving.signal, timeout: 1000 });
    await sleep(10);
    if (ends === "closed") limiter.close();
    leaving.abort(new Error("gone"));
    await assert.rejects(holding, /gone/);
    await eventually("it was tried", () => asked > 0);
    await sleep(1500);
    assert.deepEqual([asked, released], ends === "closed" ? [1, 0] : [1, 1], ends);
  }
});

test("a caller may leave while its call is being sent", async () => {
  const leaving = new AbortController();
  const sent: unknown[] = [];
  const turn = [...ALLOWED, "wait-ms", 5000];
  const send = async ([name]: readonly unknown[]) => {
    sent.push(name);
    if (name === "RL.SLIDING") leaving.abort(new Error("gone"));
    return name === "RL.REFUND" ? [1, 0, 0] : turn;
  };
  const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module" });
  await limiter.peek("k", sliding("1/minute"));
  await assert.rejects(limiter.turn("k", sliding("1/minute"), 60_000, { signal: leaving.signal }), /gone/);
  await eventually("the turn is given back", () => sent.includes("RL.REFUND"));
});

test("many calls may share a signal, and Node.js warns of no leak", async (t) => {
  const warnings: Error[] = [];
  const warn = (warning: Error) => void warnings.push(warning);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  const shared = new AbortController();
  const send = async () => DENIED;
  const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module" });
  const { signal } = shared;
  const waiting = Array.from({ length: 20 }, (_, i) => [
    limiter.hit(`k${i}`, sliding("1/minute"), { signal }),
    limiter.wait(`k${i}`, sliding("1/minute"), { signal }),
    limiter.hold("one", lease(1, 60), { signal, timeout: 60_000 }),
  ]).flat();
  const ended = Promise.allSettled(waiting);
  await sleep(50);
  shared.abort();
  await ended;
  assert.deepEqual(warnings, []);
});

test("calls that come late while others are answered are no outage: one line tells of them, and not one a call", async () => {
  const lines: string[] = [];
  const late: (() => void)[] = [];
  const send = async ([, key]: readonly unknown[]) => {
    if (key === "late") await new Promise<void>((resolve) => late.push(resolve));
    return ALLOWED;
  };
  const logger = { warn: (line: string) => void lines.push(line) };
  const limiter = new Limiter({ keyPrefix: "", send }, { mode: "module", timeout: 200, logger });
  await limiter.hit("k", sliding("9/minute"));
  for (let i = 0; i < 3; i++) {
    const isLost = assert.rejects(limiter.hit("late", sliding("9/minute")), { name: "LostReplyError" });
    const answered = setInterval(() => limiter.hit("k", sliding("9/minute")), 10);
    await isLost;
    clearInterval(answered);
  }
  for (const reply of late) reply();
  assert.equal(lines.length, 1, String(lines));
  assert.match(lines[0] ?? "", /^redis-rl \(redis-rl\): a call was not answered in time: No reply within 200 ms/);
});

test("what is wrong fails where it is made, and its text has no password", async () => {
  const connection = { keyPrefix: "", send: async () => DENIED };
  for (const logger of [{}, () => {}]) {
    assert.throws(() => new Limiter(connection, { logger: logger as never }), /the logger needs a function warn/);
  }
  const limiter = new Limiter(connection, { mode: "module" });
  const circular = { client: {}, options: { password: "secret" } };
  circular.client = circular;
  for (const rule of [circular, { url: "redis://:secret@host" }, [1n]]) {
    const error = await limiter.hit("k", rule as never).catch((error) => error);
    assert.match(String(error), /a rule is made by sliding\(\).* and is not /);
    assert.doesNotMatch(String(error), /secret/);
  }
});

test("all: a rule that the call forces is not named as violated", async () => {
  const maps = [0, 0].map(() => DENIED);
  const limiter = new Limiter({ keyPrefix: "", send: async () => [0, 0, 0, 3_600_000, maps] }, { mode: "module" });
  const { violated } = await limiter.all([
    { key: "a", rule: sliding("1/hour", { name: "a" }) },
    { key: "b", rule: sliding("1/hour", { name: "b" }), force: true },
  ]);
  assert.deepEqual(violated, ["a"]);
});

test("an app is tested without a server: a stand-in, and the limits of the process", async () => {
  const nowhere = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("no server in tests")) };
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const rule = sliding("2/minute");
  const results = [await limiter.hit("k", rule), await limiter.hit("k", rule), await limiter.hit("k", rule)];
  assert.deepEqual(
    results.map(({ allowed }) => allowed),
    [true, true, false],
  );
});

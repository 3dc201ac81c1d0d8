/** What an outage lets through and what it does not; what is counted, and taken back, is exact. */

import assert from "node:assert/strict";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { after, before, describe, type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import fastifyRateLimit from "@fastify/rate-limit";
import { serve } from "@hono/node-server";
import express from "express";
import { type Options, rateLimit } from "express-rate-limit";
import fastify from "fastify";
import { type Context, Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { Redis } from "ioredis";
import { RateLimiterMemory } from "rate-limiter-flexible";
import {
  fixed,
  Limiter,
  type LimiterOptions,
  LostReplyError,
  lease,
  type RedisClient,
  type Result,
  sliding,
  throttle,
  UnavailableError,
} from "redis-rl";
import { expressRateLimitStore, type HitStoreOptions } from "redis-rl/express-rate-limit";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { honoRateLimiterStore } from "redis-rl/hono-rate-limiter";
import { RateLimiterRl } from "redis-rl/rate-limiter-flexible";
import { type ClientKind, clients, type OpenClient } from "./support/clients.js";
import { eventually, root, Server } from "./support/server.js";

const [nodeRedis, ioredis] = [clients[0], clients[3]] as [ClientKind, ClientKind];
const HOUR = 3_600_000;
const quiet = { warn: () => {} };
/** A server that nobody reaches. */
const nowhere = () => ({ keyPrefix: "", send: () => Promise.reject(new UnavailableError("nowhere")) });
const times = <T>(count: number, make: (i: number) => T) => Array.from({ length: count }, (_, i) => make(i));
const allowed = (results: readonly Result[]) => results.filter((result) => result.allowed).length;

describe("local", () => {
  const local = (options: LimiterOptions = {}) =>
    new Limiter(nowhere(), { whenUnavailable: "local", logger: quiet, ...options });

  test("exact under 200 at once, in several windows, and a throttle's burst", async () => {
    const limiter = local();
    for (const rule of [sliding("10/hour"), fixed("10/hour"), sliding("10/minute", "50/day"), throttle("10/hour")]) {
      const key = JSON.stringify(rule);
      assert.equal(allowed(await Promise.all(times(200, () => limiter.hit(key, rule)))), 10, rule.kind);
    }
    assert.equal(allowed(await Promise.all(times(200, () => local({ processes: 5 }).hit("k", sliding("1/h"))))), 200);
    const shared = local({ processes: 5 });
    assert.equal(allowed(await Promise.all(times(200, () => shared.hit("k", sliding("10/h"))))), 2);
  });

  test("a denied request takes nothing from the windows that had room", async () => {
    const limiter = local();
    const rule = sliding("2/100ms", "5/hour");
    const results = [];
    for (let i = 0; i < 8; i++) results.push(await limiter.hit("k", rule));
    assert.equal(allowed(results), 2);
    await sleep(120);
    assert.equal(allowed(await Promise.all(times(9, () => limiter.hit("k", rule)))), 2);
  });

  test("windows longer than a timer", async () => {
    for (const rate of ["3/30d", "3/2147483647s"]) {
      const limiter = local();
      const results = [];
      for (let i = 0; i < 20; i++) {
        results.push(await limiter.hit("k", sliding(rate)));
        await sleep(1);
      }
      assert.equal(allowed(results), 3, rate);
    }
  });

  test("a peek changes nothing, and a cost counts", async () => {
    const limiter = local();
    const rule = sliding("10/hour");
    assert.equal((await limiter.peek("k", rule, { cost: 11 })).retryAfter, undefined);
    assert.equal((await limiter.hit("k", rule, { cost: 8 })).remaining, 2);
    assert.deepEqual(
      [(await limiter.peek("k", rule, { cost: 3 })).allowed, (await limiter.peek("k", rule)).used],
      [false, 8],
    );
    assert.equal((await limiter.hit("k", rule, { cost: 5, force: true })).used, 13);
  });

  test("bounded: the oldest key makes room", () => {
    const { LocalLimits } = require(join(root, "clients/node/dist/local.js"));
    const limits = new LocalLimits(1);
    const rule = sliding("1/hour");
    const isAllowed = (key: string) => limits.decide([{ key, rule }], false)[0][0].allowed;
    assert.equal(isAllowed("first"), true);
    assert.equal(isAllowed("first"), false);
    for (let i = 0; i < 60_000; i++) isAllowed(`k${i}`);
    assert.equal(isAllowed("first"), true);
    assert.equal(isAllowed("k59999"), false);
  });

  test("a key of 60 kB takes no more room than others", async () => {
    const limiter = local();
    const rule = sliding("1/hour");
    const long = (i: number) => `${i}`.padStart(60_000, "x");
    await limiter.hit("first", rule);
    const before = process.memoryUsage().heapUsed;
    for (let i = 0; i < 1000; i++) await limiter.hit(long(i), rule);
    assert.ok(process.memoryUsage().heapUsed - before < 40e6, "1,000 keys of 60 kB");
    assert.equal((await limiter.hit(long(7), rule)).allowed, false, "and are told apart");
    assert.equal((await limiter.hit("first", rule)).allowed, false);
  });

  test("a result says who decided", async () => {
    const rule = sliding("1/hour");
    const by = async (options: LimiterOptions) =>
      (await new Limiter(nowhere(), { logger: quiet, ...options }).hit("k", rule)).source;
    assert.equal(await by({ whenUnavailable: "local" }), "local");
    assert.equal(await by({ whenUnavailable: "open" }), "open");
    const open = new Limiter(nowhere(), { whenUnavailable: "open", logger: quiet });
    await assert.rejects(open.hit("k", lease(1, 60), { holder: "me" }), UnavailableError);
    await assert.rejects(open.all([{ key: "k", rule }]), UnavailableError);
  });
});

async function listen(t: TestContext, server: HttpServer): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function statuses(count: number, ask: (i: number) => Promise<Response>): Promise<number[]> {
  const list = [];
  for (let i = 0; i < count; i++) list.push((await ask(i)).status);
  return list;
}

const count = (list: readonly number[], status: number) => list.filter((each) => each === status).length;

describe("with a server", () => {
  let server: Server;
  let open: OpenClient;
  before(async () => {
    server = await Server.start({ mode: "module" });
    open = await nodeRedis.open(server.port);
  });
  after(async () => {
    open.close();
    await server.stop();
  });
  const made = (options: LimiterOptions = {}) =>
    new Limiter(open.client, { timeout: 10_000, logger: quiet, ...options });

  /** An app whose answer is what the request asks for, after a wait. */
  const appOf = {
    express: (t: TestContext, options: Partial<Options>, store: HitStoreOptions = {}, limiter = made()) => {
      const app = express();
      const keyGenerator = (request: express.Request) => String(request.query.key ?? "k");
      app.use(
        rateLimit({
          windowMs: HOUR,
          limit: 5,
          keyGenerator,
          validate: false,
          store: expressRateLimitStore(limiter, { timeout: 10_000, ...store }),
          ...options,
        }),
      );
      app.get("/", async (request, response) => {
        await sleep(Number(request.query.wait ?? 0));
        response.sendStatus(Number(request.query.status ?? 200));
      });
      return listen(t, createServer(app));
    },
    hono: (t: TestContext, options: Partial<Options>, store: HitStoreOptions = {}, limiter = made()) => {
      const app = new Hono();
      const { skipFailedRequests = false, skipSuccessfulRequests = false, requestWasSuccessful } = options;
      app.use(
        rateLimiter({
          windowMs: HOUR,
          limit: (options.limit as number | undefined) ?? 5,
          keyGenerator: (context: Context) => context.req.query("key") ?? "k",
          skipFailedRequests,
          skipSuccessfulRequests,
          ...(requestWasSuccessful && {
            requestWasSuccessful: (context: Context) =>
              requestWasSuccessful({} as never, { statusCode: context.res.status } as never),
          }),
          store: honoRateLimiterStore(limiter, { timeout: 10_000, ...store }),
        }),
      );
      app.get("/", async (context) => {
        await sleep(Number(context.req.query("wait") ?? 0));
        return context.text("", Number(context.req.query("status") ?? 200) as 200);
      });
      return new Promise<string>((resolve) => {
        const listening = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) =>
          resolve(`http://127.0.0.1:${port}`),
        );
        t.after(() => listening.close());
      });
    },
  };

  for (const [name, app] of Object.entries(appOf)) {
    for (const algorithm of ["sliding", "fixed"] as const) {
      test(`${name}, ${algorithm}: wrong passwords count, whatever the app thinks of a denial`, async (t) => {
        await server.run("FLUSHALL");
        const wasDenied = (_: unknown, response: { statusCode: number }) => response.statusCode !== 401;
        const options = { skipSuccessfulRequests: true, requestWasSuccessful: wasDenied };
        const url = await app(t, options, { algorithm });
        const wrong = await statuses(32, () => fetch(`${url}/?status=401`));
        assert.equal(count(wrong, 401), 5);
        const right = await statuses(20, () => fetch(`${url}/?key=other`));
        assert.equal(count(right, 200), 20, "what succeeds is taken back");
      });

      test(`${name}, ${algorithm}: failures are taken back, and denials that are answered late take nothing back`, async (t) => {
        await server.run("FLUSHALL");
        const url = await app(t, { skipFailedRequests: true }, { algorithm });
        assert.equal(count(await statuses(12, () => fetch(`${url}/?status=500`)), 500), 12);
        const mixed = await Promise.all(times(40, (i) => fetch(`${url}/?wait=${i % 3}`)));
        assert.equal(mixed.filter(({ status }) => status === 200).length, 5);
        await sleep(50);
        assert.equal(count(await statuses(20, () => fetch(url)), 200), 0);
      });
    }

    test(`${name}: a denial that the app calls a success swallows no other take-back`, async (t) => {
      await server.run("FLUSHALL");
      const requestWasSuccessful = (_: unknown, response: { statusCode: number }) => response.statusCode < 500;
      const limiter = made();
      const url = await app(t, { skipFailedRequests: true, requestWasSuccessful }, { denyCache: false }, limiter);
      const slow = times(5, () => fetch(`${url}/?status=500&wait=2000`));
      await eventually("five are under way", async () => {
        return (await limiter.peek("rl:sliding-5/3600s:{k}", sliding("5/hour"), { cost: 0 })).used === 5;
      });
      assert.equal(count(await statuses(4, () => fetch(url)), 429), 4);
      await Promise.all(slow);
      await eventually("all five are taken back", async () => {
        return (await limiter.peek("rl:sliding-5/3600s:{k}", sliding("5/hour"), { cost: 0 })).used === 0;
      });
    });
  }

  test("express-rate-limit: what an outage let through is not taken back on the server", async (t) => {
    await server.run("FLUSHALL");
    const limiter = made({ timeout: 200 });
    const url = await appOf.express(
      t,
      { skipFailedRequests: true, limit: 50 },
      { timeout: 200, whenUnavailable: "open" },
      limiter,
    );
    assert.equal(count(await statuses(10, () => fetch(url)), 200), 10);
    const used = async () => (await made().peek("rl:sliding-50/3600s:{k}", sliding("50/hour"), { cost: 0 })).used;
    // On a busy machine one may have been let through without the server.
    const before = await used();
    assert.ok(before > 0);
    server.pause();
    // The first is sent, and counted when the server goes on; it is not known that it was.
    await limiter.hit("other", sliding("50/hour")).catch(() => {});
    const failing = times(9, () => fetch(`${url}/?status=500&wait=1500`));
    await sleep(500);
    server.resume();
    for (const { status } of await Promise.all(failing)) assert.equal(status, 500);
    await eventually(
      "the server decides",
      async () => (await limiter.hit("other", sliding("50/hour")).catch(() => undefined))?.source === "server",
    );
    assert.equal(await used(), before);
  });

  test("express-rate-limit: a request that an outage lets through is one, or the middleware calls the store wrong", async (t) => {
    const told: unknown[] = [];
    const logger = { error: (...said: unknown[]) => told.push(said), warn: (...said: unknown[]) => told.push(said) };
    const away = new Limiter(nowhere(), { whenUnavailable: "open", logger: quiet });
    const url = await appOf.express(t, { validate: true, logger: logger as never }, {}, away);
    assert.equal((await fetch(url)).status, 200);
    assert.deepEqual(told, []);
  });

  test("a reservation that an outage let through is not settled on the server", async () => {
    // Of a counter units are given back whenever they were taken in its window.
    const rule = fixed("100000/hour", { anchored: true });
    const limiter = made({ timeout: 300, whenUnavailable: "open" });
    await limiter.hit("tokens", rule, { cost: 60_000 });
    server.pause();
    await limiter.hit("other", rule);
    const reservation = await limiter.reserve("tokens", rule, 50_000);
    const exceeded = await limiter.reserve("tokens", rule, 50_000);
    assert.equal(reservation.result.source, "open");
    server.resume();
    await eventually("the server decides", async () => (await limiter.hit("other", rule)).source === "server");
    assert.deepEqual([await reservation.settle(100), await exceeded.settle(51_000)], [false, false]);
    const used = async () => (await limiter.peek("tokens", rule, { cost: 0 })).used;
    assert.equal(await used(), 60_000);
    // And one that the server has counted is not settled by the policy, but when the server is back.
    const counted = await limiter.reserve("tokens", rule, 10_000);
    assert.equal(counted.result.source, "server");
    server.pause();
    await limiter.hit("other", rule);
    assert.equal(await counted.settle(12_000), false);
    server.resume();
    await eventually("it is settled", () => counted.settle(12_000));
    assert.equal(await used(), 72_000);
  });

  test("local in a store: divided by the processes", async (t) => {
    const gone = () => new Limiter(nowhere(), { whenUnavailable: "local", processes: 2, logger: quiet });
    for (const algorithm of ["sliding", "fixed"] as const) {
      for (const app of Object.values(appOf)) {
        const url = await app(t, { limit: 10 }, { algorithm }, gone());
        assert.equal(count(await statuses(30, () => fetch(url)), 200), 5);
      }
      const flexible = new RateLimiterRl({ limiter: gone(), points: 10, duration: 60, algorithm });
      const outcomes = await Promise.allSettled(times(30, () => flexible.consume("k")));
      assert.equal(outcomes.filter(({ status }) => status === "fulfilled").length, 5, algorithm);
    }
  });

  for (const passOnStoreError of [true, false]) {
    test(`a missing identity and a key of another kind are never let through, passOnStoreError ${passOnStoreError}`, async (t) => {
      await server.run("FLUSHALL");
      await server.run("LPUSH", "rl:sliding-5/3600s:{list}", "x");
      const logger = { error() {}, warn() {} };
      for (const whenUnavailable of ["open", "closed", "local"] as const) {
        const url = await appOf.express(t, { passOnStoreError, logger }, { whenUnavailable });
        const [nobody, list] = passOnStoreError ? [429, 429] : [403, 500];
        assert.deepEqual(
          await statuses(8, () => fetch(`${url}/?key=`)),
          times(8, () => nobody),
        );
        assert.deepEqual(
          await statuses(3, () => fetch(`${url}/?key=list`)),
          times(3, () => list),
        );
        assert.equal((await fetch(`${url}/?key=fine`)).status, 200);
      }
    });
  }

  for (const skipOnError of [true, false]) {
    test(`@fastify/rate-limit: the same, skipOnError ${skipOnError}`, async (t) => {
      await server.run("FLUSHALL");
      await server.run("LPUSH", "rl:sliding-5/3600s:{list}", "x");
      const app = fastify();
      t.after(() => app.close());
      await app.register(fastifyRateLimit, {
        max: 5,
        timeWindow: HOUR,
        skipOnError,
        keyGenerator: (request) => (request.query as { key: string }).key,
        store: fastifyRateLimitStore(made(), { whenUnavailable: "open" }),
      });
      app.get("/", () => "ok");
      const [nobody, list] = skipOnError ? [429, 429] : [403, 500];
      for (const [key, status] of [
        ["", nobody],
        ["list", list],
        ["fine", 200],
      ] as const) {
        assert.equal((await app.inject(`/?key=${key}`)).statusCode, status, key);
      }
    });
  }

  test("rate-limiter-flexible: an insurance limiter covers an outage, and no other error", async () => {
    await server.run("FLUSHALL");
    await server.run("LPUSH", "rl:anchored-5/60s:{list}:60s", "x");
    const insuranceLimiter = new RateLimiterMemory({ points: 100, duration: 60 });
    const flexible = new RateLimiterRl({ limiter: made(), points: 5, duration: 60, insuranceLimiter });
    await assert.rejects(flexible.consume("list"), /WRONGTYPE/);
    for (const key of ["", undefined, null, Number.NaN])
      await assert.rejects(flexible.consume(key as string), { name: "NoIdentityError" });
    assert.equal((await flexible.consume("fine")).remainingPoints, 4);
  });

  test("hono: an outage is a 503, a request without an identity a 403", async (t) => {
    const gone = new Limiter(nowhere(), { logger: quiet });
    assert.equal((await fetch(await appOf.hono(t, {}, {}, gone))).status, 503);
    assert.equal((await fetch(`${await appOf.hono(t, {})}/?key=`)).status, 403);
  });

  test("express-rate-limit: two limits of one request are counted by both, and none is called a double count", async (t) => {
    await server.run("FLUSHALL");
    const lines: unknown[] = [];
    const logger = { error: (line: unknown) => lines.push(line), warn: (line: unknown) => lines.push(line) };
    const app = express();
    for (const [windowMs, limit] of [
      [1000, 100],
      [HOUR, 3],
    ] as const) {
      app.use(rateLimit({ windowMs, limit, logger, store: expressRateLimitStore(made(), { timeout: 10_000 }) }));
    }
    app.get("/", (_request, response) => void response.send("ok"));
    const url = await listen(t, createServer(app));
    assert.equal(count(await statuses(6, () => fetch(url)), 200), 3);
    assert.deepEqual(lines, []);
  });

  test("a limit that is not valid is named at each request, and lets nothing through", async (t) => {
    const lines: string[] = [];
    const logger = { error: (error: unknown) => lines.push(String(error)), warn() {} };
    const url = await appOf.express(t, { limit: 1.5, passOnStoreError: true, logger });
    assert.equal((await fetch(url)).status, 429);
    assert.match(lines[0] ?? "", /the limit must be an integer/);
    assert.throws(() => honoRateLimiterStore(made()).init({ windowMs: 1000, limit: -1 }), /the limit must be/);
  });

  test("a hook that rejects is logged", async () => {
    const lines: string[] = [];
    const limiter = made({
      logger: { warn: (line) => lines.push(line) },
      onDecision: async () => Promise.reject("mine"),
    });
    await limiter.hit("hook", sliding("5/s"));
    await eventually("it is logged", () => lines.length > 0);
    assert.match(lines[0] ?? "", /onDecision failed: mine/);
  });

  test("a closed limiter says so, and others over its client go on", async () => {
    const beside = await ioredis.open(server.port);
    const connections = async () => String(await server.run("CLIENT", "LIST")).split("\n").length;
    for (const client of [open.client, beside.client] as RedisClient[]) {
      const [one, other] = [new Limiter(client, { timeout: 5000 }), new Limiter(client, { timeout: 5000 })];
      const inMode = new Limiter(client, { timeout: 5000, mode: "module" });
      const hits = () => Promise.all([other.hit("k", sliding("5/ms")), inMode.hit("k", sliding("5/ms"))]);
      await Promise.all([one.hit("k", sliding("5/ms")), hits()]);
      const underWay = hits();
      one.close();
      one.close();
      await underWay;
      await assert.rejects(one.hit("k", sliding("5/ms")), /The limiter is closed/);
      await hits();
      const last = inMode.hit("k", sliding("5/ms"));
      other.close();
      await last;
      if (client === beside.client) {
        const before = await connections();
        inMode.close();
        await eventually("its connection is closed", async () => (await connections()) === before - 1);
      }
    }
    beside.close();
  });

  test("what a caller leaves: requests stay charged; turns, places and reservations are given back", async () => {
    await server.run("FLUSHALL");
    const limiter = made();
    const rule = sliding("5/hour");
    const jobs = lease(5, 60);
    const list = [
      { key: "left", rule, cost: 2 },
      { key: "left:checked", rule, cost: 0 },
    ];
    for (const call of [
      (signal: AbortSignal) => limiter.hit("left", rule, { signal }),
      (signal: AbortSignal) => limiter.all(list, { signal }),
      (signal: AbortSignal) => limiter.wait("turned", rule, { signal }),
      (signal: AbortSignal) => limiter.turn("turned:t", throttle("5/hour"), 1000, { signal }),
      (signal: AbortSignal) => limiter.reserve("reserved", rule, 3, { signal }),
      (signal: AbortSignal) => limiter.acquire("left:jobs", jobs, { signal }),
      (signal: AbortSignal) => limiter.hold("left:jobs", jobs, { signal }),
      (signal: AbortSignal) => limiter.wait("left:jobs", jobs, { signal }),
    ]) {
      const controller = new AbortController();
      const calling = call(controller.signal);
      controller.abort(new Error("gone"));
      await assert.rejects(calling, /gone/);
      await assert.rejects(call(controller.signal), /gone/, "nothing is sent for it");
    }
    await eventually("what was charged is, and the rest is given back", async () => {
      const used = async (key: string) => (await limiter.peek(key, rule, { cost: 0 })).used;
      const places = await limiter.peek("left:jobs", jobs, { holder: "h" });
      return (await used("left")) === 3 && (await used("reserved")) === 0 && places.used === 1;
    });
  });

  test("deadlines: what adapters look up and set, a wait and a hold, of one call", async (t) => {
    const hung = await Server.start({ mode: "module" });
    t.after(() => hung.stop());
    for (const kind of [nodeRedis, ioredis]) {
      const { client, close } = await kind.open(hung.port);
      t.after(close);
      // Each of them meets the hang, and no breaker.
      const fresh = (timeout = 60_000) => new Limiter(client, { timeout, logger: quiet });
      await fresh().hit("k", sliding("5/hour"));
      const store = (whenUnavailable: "open" | "closed") => {
        const made = expressRateLimitStore(fresh(), { timeout: 300, whenUnavailable });
        made.init({ windowMs: HOUR, limit: 5 });
        return made;
      };
      const flexible = (limiter: Limiter) => new RateLimiterRl({ limiter, points: 5, duration: 60, timeout: 300 });
      const fails: [string, () => Promise<unknown>][] = [
        ["block", () => flexible(fresh()).block("k", 60)],
        ["set", () => flexible(fresh()).set("k", 3, 60)],
        ["flexible.get", () => flexible(fresh()).get("k")],
        ["flexible.delete", () => flexible(fresh()).delete("k")],
        ["express get", () => store("closed").get("k")],
        ["express resetKey", () => store("closed").resetKey("k")],
        ["one call", () => fresh().hit("k", sliding("5/hour"), { timeout: 300 })],
        // The last call has at least a tenth of the limiter's time.
        ["wait", () => fresh(3000).wait("k", sliding("5/hour"), { timeout: 20 })],
        ["hold", () => fresh(3000).hold("k:lease", lease(1, 60), { timeout: 20 })],
      ];
      for (const [name, call] of fails) {
        hung.resume();
        await eventually("it answers", () =>
          fresh()
            .hit("again", sliding("9999/hour"), { timeout: 1000 })
            .then(
              () => true,
              () => false,
            ),
        );
        hung.pause();
        const start = performance.now();
        await assert.rejects(call(), (error) => error instanceof UnavailableError, name);
        const ms = performance.now() - start;
        assert.ok(ms >= 250 && ms < 5000, `${name}: ${ms} ms`);
      }
      assert.equal(await store("open").get("k"), undefined, "open goes for look-ups, too");
      hung.resume();
    }
  });

  test("a lease that was taken for a caller that left is released, also after an outage", async () => {
    const limiter = made({ timeout: 300 });
    for (const name of ["acquire", "hold"] as const) {
      server.pause();
      const controller = new AbortController();
      const calling = limiter[name](`late:${name}`, lease(1, 60), { signal: controller.signal });
      await sleep(50);
      controller.abort(new Error("gone"));
      await assert.rejects(calling, /gone/);
      await sleep(400);
      server.resume();
      await eventually("nothing is held", async () => {
        const places = await made()
          .peek(`late:${name}`, lease(1, 60), { holder: "h" })
          .catch(() => undefined);
        return places?.used === 1 && (await server.run("EXISTS", `late:${name}`)) === 0;
      });
    }
  });

  test("a crowd that waits for places asks in turn, and an abort or a short time lets the next one on", async () => {
    const limiter = made();
    const jobs = lease(3, 60);
    const done = await Promise.all(
      times(60, () => limiter.hold("turns", jobs, () => sleep(5), { timeout: 30_000 }).then(() => 1)),
    );
    assert.equal(done.length, 60);
    const places = await Promise.all(times(3, () => limiter.hold("turns", jobs)));
    const controller = new AbortController();
    const waiting = [
      limiter.hold("turns", jobs, { timeout: 20_000, signal: controller.signal }),
      limiter.hold("turns", jobs, { timeout: 50 }),
      limiter.hold("turns", jobs, { timeout: 20_000 }),
    ] as const;
    setTimeout(() => controller.abort(new Error("gone")), 20);
    // Both at once: either may be the first to reject.
    await Promise.all([assert.rejects(waiting[0], /gone/), assert.rejects(waiting[1], { name: "DeniedError" })]);
    await places[0]?.release();
    await (await waiting[2]).release();
    for (const place of places) await place.release();
  });

  test("of a crowd that waits for a place only the first asks, and the others are told what it was told", async () => {
    const limiter = made();
    const jobs = lease(1, 60);
    const held = await limiter.hold("crowd", jobs);
    const asked = async () => Number(/calls=(\d+)/.exec(await server.info("commandstats", "cmdstat_rl.acquire"))?.[1]);
    const before = await asked();
    const denied = await Promise.all(times(100, () => limiter.wait("crowd", jobs, { timeout: 300 })));
    assert.ok(denied.every(({ allowed }) => !allowed));
    // The first polls; some more may find themselves first when its time is over.
    const polls = (await asked()) - before;
    assert.ok(polls < 50, `${polls} calls`);
    await held.release();
  });

  test("a release wakes the first that waits in the process", async (t) => {
    const { WAITING } = require(join(root, "clients/node/dist/defaults.js"));
    const { firstPoll } = WAITING;
    t.after(() => {
      WAITING.firstPoll = firstPoll;
    });
    const [limiter, jobs] = [made(), lease(1, 600)];
    const held = await limiter.hold("wakes", jobs);
    const before = await server.info("commandstats", "cmdstat_rl.acquire");
    WAITING.firstPoll = 100_000;
    const next = limiter.hold("wakes", jobs, { timeout: 200_000 });
    await eventually("it has asked", async () => before !== (await server.info("commandstats", "cmdstat_rl.acquire")));
    await held.release();
    await (await next).release();
  });

  test("replies that are lost: a reservation and its settlement are sent again, and charge once", async () => {
    await server.run("FLUSHALL");
    let lose = 0;
    const connection = {
      keyPrefix: "",
      async send(command: readonly (string | Uint8Array)[]) {
        const reply = await server.run(...(command.map(String) as [string]));
        if (lose-- > 0) throw new Error("Socket closed unexpectedly");
        return reply;
      },
    };
    const lines: string[] = [];
    const logger = { warn: (line: string) => lines.push(line) };
    const limiter = new Limiter(connection, { mode: "module", logger });
    const rule = sliding("100/hour");
    const used = async () => (await limiter.peek("lost", rule, { cost: 0 })).used;
    await limiter.hit("other", rule);
    lose = 1;
    // The breaker is shared, and a connection that fails opens it: nothing is sent for a second.
    const outcome = await limiter.reserve("lost", rule, 50).catch((error) => error);
    if (outcome instanceof Error) assert.ok(outcome instanceof UnavailableError);
    await sleep(1100);
    await server.run("FLUSHALL");
    const reservation = await limiter.reserve("lost", rule, 50);
    lose = 1;
    await reservation.settle(20);
    await sleep(1100);
    assert.equal(await reservation.settle(20), true);
    assert.equal(await reservation.settle(20), true);
    assert.equal(await used(), 20);
    await assert.rejects(reservation.cancel(), /settled already, with another/);
  });

  test("a reservation is renewed while its work lasts, and lost while the server hangs", async (t) => {
    const hanging = await Server.start({ mode: "module" });
    t.after(() => hanging.stop());
    const redis = new Redis(hanging.port);
    redis.on("error", () => {});
    t.after(() => redis.disconnect());
    const limiter = new Limiter(redis, { timeout: 300, logger: quiet });
    const rule = sliding("100/hour");
    const held = async () => Number(await hanging.run("ZCARD", "k:held")) > 0;
    await limiter.reserve("k", rule, 100, { lease: 3 }).then((reservation) => reservation.cancel());
    await limiter.reserve(
      "k",
      rule,
      100,
      async (reservation) => {
        await sleep(4000);
        assert.equal(reservation.lost, false);
        await assert.rejects(limiter.reserve("k", rule, 1), { name: "DeniedError" });
        assert.ok(await held());
        hanging.pause();
        await new Promise((resolve) => reservation.signal.addEventListener("abort", resolve));
        assert.ok(reservation.lost);
        hanging.resume();
        await eventually("it is settled", () => reservation.settle(7));
      },
      { lease: 3 },
    );
    assert.equal((await limiter.peek("k", rule, { cost: 0 })).used, 7);
  });

  test("so long after a settlement without reply that it may be forgotten, nothing is sent", async () => {
    const { Reservation } = require(join(root, "clients/node/dist/reservation.js"));
    let sent = 0;
    const keeper = {
      settle: async () => {
        sent++;
        throw new LostReplyError("lost");
      },
      renew: async () => ({ allowed: true }),
      warn() {},
      timeout: 1000,
      takenAt: performance.now(),
      renews: false,
    };
    const part = { key: "k", rule: sliding("5/s"), units: 3 };
    const hold = { holder: "h", leaseMs: 30_000 };
    const reservation = new Reservation(keeper, [part], { source: "server" }, hold);
    assert.equal(await reservation.settle(2), false);
    assert.equal(await reservation.settle(2), false);
    const real = performance.now;
    const now = real.call(performance);
    performance.now = () => now + 60_000;
    try {
      await assert.rejects(reservation.settle(2), /unknown whether/);
    } finally {
      performance.now = real;
    }
    assert.equal(sent, 2);
  });

  test("a signal ends a call at once, also while the server hangs", async (t) => {
    const hung = await Server.start({ mode: "module" });
    t.after(() => hung.stop());
    const { client, close } = await ioredis.open(hung.port);
    t.after(close);
    const limiter = new Limiter(client, { timeout: 60_000, logger: quiet });
    await limiter.hit("k", sliding("5/hour"));
    hung.pause();
    const signal = AbortSignal.timeout(100);
    const start = performance.now();
    const calls = [
      limiter.hit("k", sliding("5/hour"), { signal }),
      limiter.wait("k", sliding("5/hour"), { signal }),
      limiter.hold("k:lease", lease(1, 60), { signal }),
      limiter.acquire("k:lease", lease(1, 60), { signal }),
      limiter.all([{ key: "k", rule: sliding("5/hour") }], { signal }),
    ];
    for (const call of await Promise.allSettled(calls)) {
      assert.equal(call.status === "rejected" && call.reason.name, "TimeoutError");
    }
    assert.ok(performance.now() - start < 5000);
    hung.resume();
  });

  test("functions are flushed under 300 calls: one of them is loaded, and all are answered", async () => {
    const plain = await Server.start({});
    for (const kind of [nodeRedis, ioredis]) {
      const { client, close } = await kind.open(plain.port);
      const limiter = new Limiter(client, { timeout: 10_000 });
      await limiter.hit("k", sliding("5/hour"));
      const loads = async () =>
        Number(/calls=(\d+)/.exec(await plain.info("commandstats", "cmdstat_function\\|load"))?.[1] ?? 0);
      const before = await loads();
      await plain.run("FUNCTION", "FLUSH");
      const results = await Promise.all(times(300, (i) => limiter.hit(`k${i}`, sliding("5/hour"))));
      assert.equal(allowed(results), 300);
      assert.equal((await loads()) - before, 1);
      close();
    }
    await plain.stop();
  });

  test("what was not sent is told so, whatever the classes of errors are called", async () => {
    const { client, close } = await nodeRedis.open(server.port);
    close();
    await assert.rejects(new Limiter(client).hit("k", sliding("5/s")), (error: Error) => {
      assert.ok(error instanceof UnavailableError && !(error instanceof LostReplyError), String(error));
      assert.match(error.message, /not sent: the client is closed/);
      return true;
    });
    // As a program leaves them that makes code smaller; a pool, which is used as it is, rejects with them.
    for (const version of ["redis", "redis5/node_modules/@redis/client"]) {
      const errors = require(version === "redis" ? "@redis/client" : version) as Record<string, new () => Error>;
      for (const name of ["ClientClosedError", "ClientOfflineError", "AbortError"]) {
        class a extends Error {}
        const { message } = new (errors[name] as new () => Error)();
        const pool = { sendCommand: () => Promise.reject(new a(message)) };
        await assert.rejects(new Limiter(pool, { logger: quiet }).hit("k", sliding("5/s")), (error: Error) => {
          assert.ok(error instanceof UnavailableError && !(error instanceof LostReplyError), `${name}: ${error}`);
          return true;
        });
      }
    }
  });

  test("a message says once what was not sent, and why", async () => {
    const { createClient } = await import("redis");
    const { freePort } = await import("./support/server.js");
    const port = await freePort();
    // As localhost has two addresses on many machines: then the error of the connection is one of several, and says nothing.
    const addresses = ["127.0.0.1", "127.0.0.2"].map((address) => ({ address, family: 4 }));
    const lookup = (_name: string, _options: object, told: (error: null, found: object[]) => void) =>
      told(null, addresses);
    for (const socket of [
      { host: "127.0.0.1", port },
      { host: "both", port, lookup: lookup as never },
    ]) {
      const client = createClient({ socket });
      client.on("error", () => {});
      client.connect().catch(() => {});
      const limiter = new Limiter(client, { logger: quiet });
      for (let i = 0; i < 3; i++) {
        await assert.rejects(limiter.hit("k", sliding("5/s")), ({ message }: Error) => {
          assert.match(message, /ECONNREFUSED/);
          assert.equal(message.split("not sent").length, 2, message);
          return true;
        });
      }
      client.destroy();
    }
  });
});

test("invalid arguments are refused", async () => {
  const limiter = new Limiter(nowhere());
  const wrong = <T>(value: unknown) => value as T;
  for (const timeout of [0, -1, Number.NaN, 2 ** 31, Number.POSITIVE_INFINITY, "250"]) {
    assert.throws(() => new Limiter(nowhere(), { timeout: wrong(timeout) }), /timeout must be/, String(timeout));
    assert.throws(
      () => expressRateLimitStore(limiter, { timeout: wrong(timeout) }),
      /timeout must be/,
      String(timeout),
    );
    await assert.rejects(limiter.hit("k", sliding("1/s"), { timeout: wrong(timeout) }), /timeout must be/);
  }
  await assert.rejects(limiter.wait("k", sliding("1/s"), { timeout: Number.NaN }), /timeout must be/);
  await assert.rejects(limiter.hold("k", lease(1, 60), { timeout: Number.NaN }), /timeout must be/);
  assert.throws(() => lease(wrong(5n), 60), /the limit must be an integer from 0 to \d+, not 5/);
  const sent: unknown[] = [];
  const recorder = new Limiter({ keyPrefix: "", send: async (command) => sent.push(command) });
  await assert.rejects(recorder.hit("k", sliding("1/s"), { signal: wrong(new AbortController()) }), TypeError);
  assert.deepEqual(sent, []);
  assert.throws(() => fixed("5/s", wrong({ anchord: true })), /fixed\(\) has no option anchord; it has anchored/);
  assert.throws(() => sliding("5/s", wrong({ anchored: true })), /sliding\(\) has no option anchored/);
  assert.throws(() => throttle("5/s", wrong({ force: true })), /throttle\(\) has no option force/);
  assert.throws(() => lease(5, 60, wrong({ cost: 1 })), /lease\(\) has no option cost/);
  assert.throws(
    () => new Limiter(nowhere(), wrong("app:")),
    /the options of new Limiter\(\) are an object, and not "app:"/,
  );
  assert.throws(() => new Limiter(nowhere(), wrong({ prefx: "a" })), /has no option prefx/);
  assert.throws(() => expressRateLimitStore(limiter, wrong({ algoritm: "fixed" })), /the store has no option algoritm/);
  assert.throws(() => expressRateLimitStore(limiter, { algorithm: wrong("gcra") }), /algorithm must be/);
  const store = expressRateLimitStore(limiter);
  store.init({ windowMs: 1000, limit: 5 });
  await assert.rejects(store.increment(wrong(Number.NaN)), { name: "NoIdentityError" });
});

test("a result can be spread", async () => {
  const { retryAfter, nextAfter, resetAfter } = {
    ...(await new Limiter(nowhere(), { whenUnavailable: "local", logger: quiet }).hit("k", sliding("5/minute"))),
  };
  assert.deepEqual([retryAfter, nextAfter, resetAfter], [0, 60, 60]);
});

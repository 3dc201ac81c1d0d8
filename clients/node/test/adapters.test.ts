/** What holds for every adapter: keys that never collide, logs that stay small, identities, remembered denials. */

import assert from "node:assert/strict";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, type TestContext, test } from "node:test";
import fastifyRateLimit from "@fastify/rate-limit";
import { serve } from "@hono/node-server";
import express, { type RequestHandler } from "express";
import { type Options, rateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { clientAddress, Limiter } from "redis-rl";
import { expressRateLimitStore, type HitStoreOptions } from "redis-rl/express-rate-limit";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { honoRateLimiterStore } from "redis-rl/hono-rate-limiter";
import { RateLimiterRl } from "redis-rl/rate-limiter-flexible";
import { clients, type OpenClient } from "./support/clients.js";
import { eventually, Server } from "./support/server.js";

const HOUR = 3_600_000;

async function listen(t: TestContext, server: HttpServer): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function statuses(urls: readonly string[]): Promise<number[]> {
  const list = [];
  for (const url of urls) list.push((await fetch(url)).status);
  return list;
}

/** A machine that is busy with something else is no failure. */
const patient = { timeout: 10_000 };

/** Twelve logins, with calls of the other limit before and after each: three get in. */
async function logins(url: string): Promise<void> {
  const urls = Array.from({ length: 12 }, () => [`${url}/api`, `${url}/login`, `${url}/api`]).flat();
  const answers = await statuses(urls);
  const of = (path: string) => answers.filter((_, i) => urls[i] === url + path);
  assert.deepEqual(of("/login"), [200, 200, 200, ...Array.from({ length: 9 }, () => 429)]);
  assert.ok(of("/api").every((status) => status === 200));
}

describe("adapters", () => {
  let server: Server;
  let open: OpenClient;
  let limiter: Limiter;

  before(async () => {
    server = await Server.start({ mode: "module" });
    open = (await clients[0]?.open(server.port)) as OpenClient;
  });
  after(async () => {
    open.close();
    await server.stop();
  });
  const fresh = async () => {
    await server.run("FLUSHALL");
    await server.run("CONFIG", "RESETSTAT");
    limiter = new Limiter(open.client, { mode: "module", timeout: 10_000 });
    return limiter;
  };
  const calls = async (name: string) =>
    Number(/calls=(\d+)/.exec(await server.info("commandstats", `cmdstat_rl.${name}`))?.[1] ?? 0);
  /** Bytes of all keys. */
  const stored = async () => {
    const keys = (await server.run("KEYS", "*")) as string[];
    let bytes = 0;
    for (const key of keys) bytes += Number(await server.run("MEMORY", "USAGE", key, "SAMPLES", 0));
    return bytes;
  };

  for (const algorithm of ["sliding", "fixed"] as const) {
    test(`express-rate-limit, ${algorithm}: two limits of one address are two`, async (t) => {
      await fresh();
      const app = express();
      const store = () => expressRateLimitStore(limiter, algorithm === "sliding" ? patient : { ...patient, algorithm });
      app.use("/login", rateLimit({ windowMs: HOUR, limit: 3, store: store() }));
      app.use("/api", rateLimit({ windowMs: 1000, limit: 100, store: store() }));
      app.use((_request, response) => void response.send("ok"));
      await logins(await listen(t, createServer(app)));
    });

    test(`hono-rate-limiter, ${algorithm}: two limits of one address are two`, async (t) => {
      await fresh();
      const app = new Hono();
      const store = () => honoRateLimiterStore(limiter, algorithm === "sliding" ? patient : { ...patient, algorithm });
      const keyGenerator = () => "one";
      app.use("/login", rateLimiter({ windowMs: HOUR, limit: 3, keyGenerator, store: store() }));
      app.use("/api", rateLimiter({ windowMs: 1000, limit: 100, keyGenerator, store: store() }));
      app.all("*", (context) => context.text("ok"));
      const url = await new Promise<string>((resolve) => {
        const listening = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) =>
          resolve(`http://127.0.0.1:${port}`),
        );
        t.after(() => listening.close());
      });
      await logins(url);
    });

    test(`@fastify/rate-limit, ${algorithm}: two limits of one address are two, and a route is its template`, async (t) => {
      await fresh();
      const app = fastify();
      t.after(() => app.close());
      await app.register(fastifyRateLimit, {
        max: 100,
        timeWindow: 1000,
        store: fastifyRateLimitStore(limiter, algorithm === "sliding" ? patient : { ...patient, algorithm }),
      });
      app.get("/login", { config: { rateLimit: { max: 3, timeWindow: HOUR } } }, () => "ok");
      app.get("/api", () => "ok");
      app.get("/item/:id", { config: { rateLimit: { max: 3, timeWindow: HOUR } } }, () => "ok");
      const url = await app.listen({ port: 0, host: "127.0.0.1" });
      await logins(url);
      const items = Array.from({ length: 5 }, (_, i) => `${url}/item/${i}`);
      assert.deepEqual(await statuses(items), [200, 200, 200, 429, 429]);
      const keys = (await server.run("KEYS", "*item*")) as string[];
      assert.equal(keys.length, 1);
      assert.match(keys[0] ?? "", /^rl:GET\/item\/%3Aid:\{127\.0\.0\.1\}/);
    });

    test(`@fastify/rate-limit, ${algorithm}: the routes of a group are one limit, also without an identity none`, async (t) => {
      await fresh();
      const app = fastify();
      t.after(() => app.close());
      await app.register(fastifyRateLimit, {
        global: false,
        keyGenerator: ({ headers }) => String(headers["x-key"] ?? ""),
        store: fastifyRateLimitStore(limiter, { ...patient, algorithm }),
      });
      const of = (groupId: string) => ({ config: { rateLimit: { max: 3, timeWindow: HOUR, groupId } } });
      for (const path of ["/send", "/again"]) app.get(path, of("otp"), () => "ok");
      app.get("/other", of("other"), () => "ok");
      const get = async (url: string) => (await app.inject({ url, headers: { "x-key": "k" } })).statusCode;
      const found = [];
      for (const path of ["/send", "/again", "/send", "/again", "/send", "/other"]) found.push(await get(path));
      assert.deepEqual(found, [200, 200, 200, 429, 429, 200]);
      assert.equal((await app.inject("/send")).statusCode, 403);
    });

    test(`rate-limiter-flexible, ${algorithm}: two limits of one key are two`, async () => {
      await fresh();
      const login = new RateLimiterRl({ limiter, points: 3, duration: 3600, algorithm, ...patient });
      const api = new RateLimiterRl({ limiter, points: 100, duration: 1, algorithm, ...patient });
      let passed = 0;
      for (let i = 0; i < 12; i++) {
        await api.consume("one");
        await login.consume("one").then(
          () => passed++,
          () => {},
        );
      }
      assert.equal(passed, 3);
    });
  }

  const one = (options: Partial<Options>, store: HitStoreOptions = {}) => {
    const app = express();
    app.use(
      rateLimit({
        windowMs: HOUR,
        limit: 5,
        keyGenerator: () => "one",
        validate: false,
        store: expressRateLimitStore(limiter, { ...patient, ...store }),
        ...options,
      }) as RequestHandler,
    );
    app.get("/", (request, response) => void response.sendStatus(request.query.fail ? 500 : 200));
    return createServer(app);
  };

  for (const [what, options] of Object.entries<Partial<Options>>({
    "a limit that is a function": { limit: () => 5 },
    skipFailedRequests: { skipFailedRequests: true },
    "skipFailedRequests that takes no denial back": {
      skipFailedRequests: true,
      requestWasSuccessful: (_request, response) => response.statusCode < 500,
    },
  })) {
    test(`denials do not make a log grow: ${what}`, async (t) => {
      await fresh();
      // None is remembered, so that each denial reaches the server.
      const url = await listen(t, one(options, { denyCache: false }));
      assert.deepEqual(await statuses(Array.from({ length: 8 }, () => url)), [200, 200, 200, 200, 200, 429, 429, 429]);
      const before = await stored();
      const answers = await statuses(Array.from({ length: 300 }, () => url));
      assert.ok(answers.every((status) => status === 429));
      assert.ok((await stored()) <= before + 64, `${before} bytes became ${await stored()}`);
    });
  }

  test("a limit that is a function: exact where the store is told the limit of a key", async (t) => {
    await fresh();
    const limits: Record<string, number> = { free: 2, paid: 4 };
    const app = express();
    const keyGenerator = (request: express.Request) => String(request.query.plan);
    const store = expressRateLimitStore(limiter, { ...patient, limit: (key) => limits[key] ?? 0 });
    const limit = (request: express.Request) => limits[keyGenerator(request)] ?? 0;
    app.use(rateLimit({ windowMs: HOUR, limit, keyGenerator, store }));
    app.get("/", (_request, response) => void response.send("ok"));
    const url = await listen(t, createServer(app));
    for (const [plan, most] of Object.entries(limits)) {
      const answers = await statuses(Array.from({ length: 6 }, () => `${url}/?plan=${plan}`));
      assert.equal(answers.filter((status) => status === 200).length, most);
      assert.equal(Number(await server.run("EXISTS", `rl:sliding-3600s:{${plan}}`)), 1);
      assert.equal((await store.get(plan))?.totalHits, most, "a denial is not counted");
    }
  });

  test("skipFailedRequests takes back what failed and nothing else, also between denials", async (t) => {
    await fresh();
    const url = await listen(t, one({ limit: 2, skipFailedRequests: true }));
    const used = async () => Number(await server.run("STRLEN", "rl:sliding-2/3600s:{one}"));
    assert.deepEqual(await statuses([url, url, url, url, url]), [200, 200, 429, 429, 429]);
    const full = await used();
    await statuses([url, url, url]);
    assert.equal(await used(), full);
    await fresh();
    const other = await listen(t, one({ limit: 2, skipFailedRequests: true }));
    assert.deepEqual(await statuses([`${other}/?fail=1`]), [500]);
    await eventually("it is taken back", async () => (await calls("refund")) === 1);
    assert.deepEqual(await statuses([other, other, other]), [200, 200, 429]);
  });

  test("rate-limiter-flexible: an insurance limiter takes over where the server is unavailable", async () => {
    const nowhere = { keyPrefix: "", send: () => Promise.reject(new Error("connect ECONNREFUSED")) };
    const insuranceLimiter = new RateLimiterMemory({ points: 1, duration: 60 });
    const gone = new Limiter(nowhere, { whenUnavailable: "open", logger: { warn() {} } });
    const flexible = new RateLimiterRl({ limiter: gone, points: 5, duration: 60, insuranceLimiter });
    assert.equal((await flexible.consume("one")).remainingPoints, 0);
    await assert.rejects(flexible.consume("one"), (denial) => !(denial instanceof Error));
    const open = new RateLimiterRl({ limiter: gone, points: 5, duration: 60 });
    assert.equal((await open.consume("one")).remainingPoints, 5);
  });

  test("a limit of 0 counts all requests, as express-slow-down needs it, and lets none through", async (t) => {
    await fresh();
    const store = expressRateLimitStore(limiter, patient);
    store.init({ windowMs: HOUR, limit: 0 });
    const hits = [];
    for (let i = 0; i < 3; i++) hits.push((await store.increment("one")).totalHits);
    assert.deepEqual(hits, [1, 2, 3]);
    assert.equal((await store.get("one"))?.totalHits, 3);
    const url = await listen(t, one({ limit: 0 }));
    assert.deepEqual(await statuses([url, url]), [429, 429]);
  });

  test("names part limits that are the same, and an identifier is a name", async (t) => {
    await fresh();
    const app = express();
    const store = (options: HitStoreOptions = {}) => expressRateLimitStore(limiter, { ...patient, ...options });
    const settings = { windowMs: HOUR, limit: 2, keyGenerator: () => "one" };
    app.use("/a", rateLimit({ ...settings, store: store({ name: "a:b" }) }));
    app.use("/b", rateLimit({ ...settings, identifier: "b", store: store() }));
    app.use((_request, response) => void response.send("ok"));
    const url = await listen(t, createServer(app));
    assert.deepEqual(
      await statuses(["/a", "/b", "/a", "/b", "/a", "/b"].map((path) => url + path)),
      [200, 200, 200, 200, 429, 429],
    );
    assert.deepEqual(((await server.run("KEYS", "*")) as string[]).sort(), ["rl:a%3Ab:{one}", "rl:b:{one}"]);
  });

  test("requests without an identity never share a key", async (t) => {
    await fresh();
    const none = { keyGenerator: () => undefined as unknown as string };
    const refused = await listen(t, one(none));
    assert.deepEqual(await statuses([refused, refused]), [403, 403]);
    const let_in = await listen(t, one({ ...none, limit: 1 }, { withoutIdentity: "allow" }));
    assert.deepEqual(await statuses([let_in, let_in, let_in]), [200, 200, 200]);
    assert.deepEqual(await server.run("KEYS", "*"), []);
  });

  test("behind a proxy the client's address counts, and nobody makes one up", async (t) => {
    await fresh();
    const identify = clientAddress({ trustedProxies: ["127.0.0.0/8"] });
    const url = await listen(t, one({ limit: 1, keyGenerator: (request) => identify(request) ?? "" }));
    const from = async (forwarded: string) => (await fetch(url, { headers: { "X-Forwarded-For": forwarded } })).status;
    assert.equal(await from("203.0.113.7"), 200);
    assert.equal(await from("203.0.113.8"), 200);
    assert.equal(await from("6.6.6.6, 203.0.113.7"), 429);
    assert.equal(await from("2001:db8:1:2::1"), 200);
    assert.equal(await from("2001:db8:1:2::2"), 429, "one /64 is one client");
    assert.equal(await from("unknown"), 403);
  });

  test("a flood at one key reaches the server about once a second", async (t) => {
    await fresh();
    const store = expressRateLimitStore(limiter, patient);
    store.init({ windowMs: HOUR, limit: 2 });
    let hits = 0;
    for (; hits < 4; hits++) await store.increment("one");
    for (const until = performance.now() + 1500; performance.now() < until; hits += 32) {
      const crowd = await Promise.all(Array.from({ length: 32 }, () => store.increment("one")));
      for (const { totalHits, resetTime } of crowd) {
        assert.ok(totalHits === 3 && resetTime.getTime() > Date.now() + HOUR - 60_000);
      }
      await new Promise(setImmediate);
    }
    const asked = await calls("sliding");
    // About six. A machine that stands still for a moment lets a whole crowd ask again.
    assert.ok(hits > 1000 && asked >= 4 && asked < 80, `${asked} of ${hits} reached the server`);
    assert.ok(limiter.statistics.deniedFromMemory >= hits - asked);
    await store.resetKey("one");
    assert.equal((await store.increment("one")).totalHits, 1, "a reset forgets the denial");
    t.diagnostic(`${asked} of ${hits} reached the server`);
  });
});

// The adapters of the Node.js package as applications: express, hono or fastify with the stores of their own limiters, nest, and
// own-express, own-fastify, own-fetch, own-hono and own-koa with the package's middleware, as the first argument says.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("../../node/package.json", import.meta.url));
const { Limiter, lease, sliding } = require("redis-rl");
const { createClient, createCluster } = require("redis");

const kind = process.argv[2];
const own = kind.startsWith("own-");
const tell = (told) => process.stdout.write(`${JSON.stringify(told)}\n`);
const logger = { warn: (text) => tell({ log: "warning", text }) };
const silent = { error() {}, warn() {} };

function clientOf({ url, cluster }) {
  const client = cluster
    ? createCluster({ rootNodes: cluster.map((text) => ({ url: `redis://${text}` })) })
    : createClient({ url });
  client.on("error", () => {});
  client.connect().catch(() => {});
  return client;
}

/** The framework's limiter has one rate. */
function settingsOf({ kind, rates, ...options }) {
  const { windows } = sliding(...(rates ?? []), options);
  if (kind !== "sliding" || windows.length > 1) throw new TypeError("a store has one sliding window");
  return windows[0];
}

/** The package's own middleware takes any rule. */
function ruleOf({ kind, rates, limit, ttl, ...options }) {
  if (kind === "lease") return lease(limit, ttl, options);
  if (kind === "sliding") return sliding(...(rates ?? []), options);
  throw new TypeError(`these scenarios have no ${kind}`);
}

const apps = {
  express(limiter, { limit, windowMs }, skipFailedRequests) {
    const express = require("express");
    const { rateLimit } = require("express-rate-limit");
    const { expressRateLimitStore } = require("redis-rl/express-rate-limit");
    const app = express();
    const keyGenerator = (request) => request.get("x-key") ?? "";
    const store = expressRateLimitStore(limiter);
    app.use(rateLimit({ windowMs, limit, keyGenerator, skipFailedRequests, store, logger: silent }));
    const status = (request) => Number(request.get("x-status") ?? 200);
    app.get("/", (request, response) => void response.status(status(request)).send("in"));
    app.get("/slow", async (request, response) => {
      response.status(status(request)).write("in");
      await sleep(2000);
      response.end();
    });
    app.use((error, _request, response, _next) => void response.status(error.status ?? 500).end());
    return listen(createServer(app));
  },

  async hono(limiter, { limit, windowMs }, skipFailedRequests) {
    const { Hono } = require("hono");
    const { rateLimiter } = require("hono-rate-limiter");
    const { honoRateLimiterStore } = require("redis-rl/hono-rate-limiter");
    const app = new Hono();
    const keyGenerator = (context) => context.req.header("x-key") ?? "";
    app.use(rateLimiter({ windowMs, limit, keyGenerator, skipFailedRequests, store: honoRateLimiterStore(limiter) }));
    app.onError((error, context) => {
      if (!error.getResponse) console.error(error);
      return error.getResponse?.() ?? context.text("", 500);
    });
    return serveHono(app);
  },

  async fastify(limiter, { limit, windowMs }) {
    const { fastify } = require("fastify");
    const rateLimit = require("@fastify/rate-limit");
    const { fastifyRateLimitStore } = require("redis-rl/fastify-rate-limit");
    const app = fastify();
    const keyGenerator = (request) => request.headers["x-key"] ?? "";
    await app.register(rateLimit, {
      max: limit,
      timeWindow: windowMs,
      keyGenerator,
      store: fastifyRateLimitStore(limiter),
    });
    return serveFastify(app);
  },

  async nest(limiter, { limit, windowMs: ttl }) {
    require("reflect-metadata");
    const { Controller, Get, Module, Req, Res } = require("@nestjs/common");
    const { APP_GUARD, NestFactory } = require("@nestjs/core");
    const { ThrottlerModule } = require("@nestjs/throttler");
    const { NestThrottlerStorage, RlThrottlerGuard } = require("redis-rl/nestjs");
    class Home {
      async answer(request, response) {
        response.status(Number(request.get("x-status") ?? 200)).send("in");
      }
    }
    const descriptor = Object.getOwnPropertyDescriptor(Home.prototype, "answer");
    Req()(Home.prototype, "answer", 0);
    Res()(Home.prototype, "answer", 1);
    Get()(Home.prototype, "answer", descriptor);
    Controller()(Home);
    class App {}
    const storage = new NestThrottlerStorage(limiter);
    const getTracker = (request) => request.get("x-key");
    Module({
      imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl, limit }], storage, getTracker })],
      controllers: [Home],
      providers: [{ provide: APP_GUARD, useClass: RlThrottlerGuard }],
    })(App);
    const app = await NestFactory.create(App, { logger: false });
    await app.listen(0, "127.0.0.1");
    return Number(new URL(await app.getUrl()).port);
  },

  "own-express"(limiter, rule) {
    const express = require("express");
    const { rateLimit } = require("redis-rl/express");
    const app = express();
    const cost = (request) => Number(request.get("x-cost") ?? 1);
    app.use(rateLimit(limiter, rule, { key: (request) => request.get("x-key"), cost }));
    const status = (request) => Number(request.get("x-status") ?? 200);
    app.get("/", (request, response) => void response.status(status(request)).send("in"));
    app.get("/slow", async (request, response) => {
      response.status(status(request)).write("in");
      await sleep(2000);
      response.end();
    });
    app.use((_error, _request, response, _next) => void response.status(500).end());
    return listen(createServer(app));
  },

  async "own-hono"(limiter, rule) {
    const { Hono } = require("hono");
    const { rateLimit } = require("redis-rl/hono");
    const app = new Hono();
    const cost = (context) => Number(context.req.header("x-cost") ?? 1);
    app.use(rateLimit(limiter, rule, { key: (context) => context.req.header("x-key"), cost }));
    app.onError((_error, context) => context.text("", 500));
    return serveHono(app);
  },

  "own-fastify"(limiter, rule) {
    const { fastify } = require("fastify");
    const { rateLimit } = require("redis-rl/fastify");
    const app = fastify();
    const cost = (request) => Number(request.headers["x-cost"] ?? 1);
    app.addHook("onRequest", rateLimit(limiter, rule, { key: (request) => request.headers["x-key"], cost }));
    return serveFastify(app);
  },

  "own-fetch"(limiter, rule) {
    const { Hono } = require("hono");
    const { rateLimit } = require("redis-rl/fetch");
    const app = new Hono();
    const cost = (request) => Number(request.headers.get("x-cost") ?? 1);
    const limited = rateLimit(limiter, rule, { key: (request) => request.headers.get("x-key"), cost });
    return serveHono(app, limited(app.fetch));
  },

  "own-koa"(limiter, rule) {
    const Koa = require("koa");
    const { rateLimit } = require("redis-rl/koa");
    const app = new Koa();
    app.silent = true;
    const cost = (context) => Number(context.get("x-cost") || 1);
    app.use(rateLimit(limiter, rule, { key: (context) => context.get("x-key"), cost }));
    app.use((context) => {
      context.status = Number(context.get("x-status") || 200);
      context.body = context.path === "/slow" ? Readable.from(slowly()) : "in";
    });
    return listen(createServer(app.callback()));
  },
};

/** The routes of an application of Fastify, whose limits are in place, and its port. */
async function serveFastify(app) {
  const status = (request) => Number(request.headers["x-status"] ?? 200);
  app.get("/", (request, reply) => reply.code(status(request)).send("in"));
  app.get("/slow", (request, reply) => reply.code(status(request)).send(Readable.from(slowly())));
  return Number(new URL(await app.listen({ port: 0, host: "127.0.0.1" })).port);
}

async function* slowly() {
  yield "in";
  await sleep(2000);
}

/** The same for Hono; `fetch` may be a handler around it. */
function serveHono(app, fetch = app.fetch) {
  const { stream } = require("hono/streaming");
  const { serve } = require("@hono/node-server");
  const status = (context) => context.status(Number(context.req.header("x-status") ?? 200));
  app.get("/", (context) => {
    status(context);
    return context.text("in");
  });
  app.get("/slow", (context) => {
    status(context);
    return stream(context, async (body) => {
      await body.write("in");
      await sleep(2000);
    });
  });
  return new Promise((resolve) => {
    serve({ fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) => resolve(port));
  });
}

function listen(server) {
  return new Promise((resolve) => server.listen(0, "127.0.0.1", 1024, () => resolve(server.address().port)));
}

async function serveApp({
  connect,
  rule,
  policy: whenUnavailable,
  processes = 1,
  timeout,
  takes_back: takesBack = false,
}) {
  try {
    const settings = own ? ruleOf(rule) : settingsOf(rule);
    const options = {
      processes,
      logger,
      ...(whenUnavailable && { whenUnavailable }),
      ...(timeout && { timeout: timeout * 1000 }),
    };
    const limiter = new Limiter(clientOf(connect), options);
    return { outcome: "done", port: await apps[kind](limiter, settings, takesBack) };
  } catch (error) {
    if (!(error instanceof TypeError || error instanceof RangeError)) throw error;
    return { outcome: "argument", error: error.message };
  }
}

/** What is kept: V8 lets tens of megabytes of garbage lie, more or less of them as it comes. */
function memory() {
  globalThis.gc();
  const { heapUsed, external } = process.memoryUsage();
  return { outcome: "done", count: heapUsed + external };
}

const can = ["serve", "memory", "open", "closed", "local", "processes", "identity", "local-memory", "cluster"];
const more = own ? ["own", "several", "cost", "lease"] : ["express", "hono"].includes(kind) ? ["take-back"] : [];
tell({ can: [...can, ...more] });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  tell({ id: command.id, ...(command.do === "memory" ? memory() : await serveApp(command)) });
}
process.exit();

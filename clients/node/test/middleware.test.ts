/** The package's own middleware inside its frameworks, over real HTTP. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, ServerResponse, request as send } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { Readable } from "node:stream";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { serve } from "@hono/node-server";
import KoaRouter from "@koa/router";
import express from "express";
import fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import { Hono } from "hono";
import { cors } from "hono/cors";
import { timeout } from "hono/timeout";
import Koa from "koa";
import mount from "koa-mount";
import { type Connection, fixed, Limiter, lease, type Rule, sliding, UnavailableError } from "redis-rl";
import { rateLimit as expressRateLimit } from "redis-rl/express";
import { rateLimit as fastifyRateLimit, rateLimitPlugin } from "redis-rl/fastify";
import { rateLimit as fetchRateLimit } from "redis-rl/fetch";
import { rateLimit as honoRateLimit } from "redis-rl/hono";
import { rateLimit as koaRateLimit } from "redis-rl/koa";
import { parseList } from "structured-headers";
import { clients, type OpenClient } from "./support/clients.js";
import { eventually, modes, Server } from "./support/server.js";

type Read = (name: string) => string | undefined;

/** What an app limits, with the fields of a request read in the way of its framework. */
interface Limited {
  readonly limits:
    | Rule
    | {
        readonly rule: Rule | ((read: Read) => Rule | undefined);
        readonly key?: (read: Read) => string | undefined;
        readonly cost?: (read: Read) => number;
      }[];
  readonly options?: {
    readonly whenUnavailable?: "open" | "closed" | "local";
    readonly withoutIdentity?: "refuse" | "allow";
    readonly denyCache?: boolean;
    readonly prefix?: string;
    readonly timeout?: number;
  };
  /** Whether the app answers denials itself, with status 420. */
  readonly answers?: boolean;
  /** A limit of all routes beside it. */
  readonly also?: Rule;
  /** Whether the limit is declared for all routes at once. */
  readonly everywhere?: boolean;
}

interface App {
  readonly url: string;
  close(): Promise<unknown>;
}

/**
 * GET /item/:id, /other/:id, /slow (half a second), /fails; POST /item/:id reads its body. All are limited, and come to their
 * limit as many milliseconds later as the header x-wait says.
 */
type Make = (limiter: Limiter, limited: Limited) => Promise<App>;

/** The functions of `limited`, of a framework's requests. */
function of<Q>({ limits, options = {} }: Limited, read: (request: Q) => Read) {
  const list = Array.isArray(limits)
    ? limits.map(({ rule, key, cost }) => ({
        rule: typeof rule === "function" ? (request: Q) => rule(read(request)) : rule,
        ...(key && { key: (request: Q) => key(read(request)) }),
        ...(cost && { cost: (request: Q) => cost(read(request)) }),
      }))
    : (limits as Rule);
  return { list, options: { key: (request: Q) => read(request)("x-key"), ...options } };
}

const field =
  (headers: IncomingHttpHeaders): Read =>
  (name) =>
    headers[name] as string | undefined;

async function listening(server: ReturnType<typeof createServer>): Promise<App> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}

function served(fetch: (request: Request) => Response | Promise<Response>): Promise<App> {
  return new Promise((resolve) => {
    const server = serve({ fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) =>
      resolve({
        url: `http://127.0.0.1:${port}`,
        close: () => {
          (server as ReturnType<typeof createServer>).closeAllConnections();
          return new Promise((done) => server.close(done));
        },
      }),
    );
  });
}

const waited = (read: Read) => sleep(Number(read("x-wait") ?? 0));

/** Something every 20 ms, for half a second. */
async function* slowly() {
  for (let i = 0; i < 25; i++) {
    yield Buffer.from("x");
    await sleep(20);
  }
}

const makes: Record<string, Make> = {
  express(limiter, limited) {
    const { list, options } = of<express.Request>(limited, (request) => field(request.headers));
    const own = limited.answers && {
      onDenied: (_request: express.Request, response: express.Response) => void response.status(420).send("calm"),
    };
    const limit = expressRateLimit(limiter, list, { ...options, ...own });
    const app = express();
    app.use(async (request, _response, next) => {
      await waited(field(request.headers));
      next();
    });
    const route: express.RequestHandler = limited.everywhere ? (_request, _response, next) => next() : limit;
    if (limited.also) app.use(expressRateLimit(limiter, limited.also, options));
    if (limited.everywhere) app.use(limit);
    app.get("/item/:id", route, (_request, response) => void response.send("in"));
    app.get("/other/:id", route, (_request, response) => void response.send("in"));
    app.post("/item/:id", route, express.text({ limit: "10mb" }), (_request, response) => void response.send("in"));
    app.get("/slow", route, (_request, response) => void Readable.from(slowly()).pipe(response));
    app.get("/fails", route, () => {
      throw new Error("it fails");
    });
    const below = express.Router({ mergeParams: true });
    below.get("/item", route, (_request, response) => void response.send("in"));
    app.use("/user/:user", below);
    app.use(((_error, _request, response, _next) => void response.status(500).end()) as express.ErrorRequestHandler);
    return listening(createServer(app));
  },

  koa(limiter, limited) {
    const { list, options } = of<Koa.Context>(limited, ({ headers }) => field(headers));
    const own = limited.answers && {
      onDenied: (context: Koa.Context) => {
        context.status = 420;
        context.body = "calm";
      },
    };
    const limit = koaRateLimit(limiter, list, { ...options, ...own });
    const app = new Koa({ silent: true } as ConstructorParameters<typeof Koa>[0]);
    app.silent = true;
    app.use(async ({ headers }, next) => {
      await waited(field(headers));
      await next();
    });
    if (limited.also) app.use(koaRateLimit(limiter, limited.also, options));
    if (limited.everywhere) app.use(limit);
    const route: Koa.Middleware = limited.everywhere ? (_context, next) => next() : limit;
    const router = new KoaRouter();
    const answer: Koa.Middleware = (context) => {
      context.body = "in";
    };
    router.get("/item/:id", route, answer).get("/other/:id", route, answer).get("/user/:user/item", route, answer);
    router.post("/item/:id", route, async (context) => {
      for await (const _ of context.req);
      context.body = "in";
    });
    router.get("/slow", route, (context) => {
      context.body = Readable.from(slowly());
    });
    router.get("/fails", route, () => {
      throw new Error("it fails");
    });
    app.use(router.routes() as unknown as Koa.Middleware);
    return listening(createServer(app.callback()));
  },

  async fastify(limiter, limited) {
    const { list, options } = of<FastifyRequest>(limited, ({ headers }) => field(headers));
    const own = limited.answers && {
      onDenied: (_request: unknown, reply: FastifyReply) => reply.code(420).send("calm"),
    };
    const limit = fastifyRateLimit(limiter, list, { ...options, ...own });
    const app = fastify();
    app.addHook("onRequest", ({ headers }) => waited(field(headers)));
    if (limited.also) app.addHook("onRequest", fastifyRateLimit(limiter, limited.also, options));
    if (limited.everywhere) app.addHook("onRequest", limit);
    const route = limited.everywhere ? {} : { onRequest: limit };
    app.get("/item/:id", route, async () => "in");
    app.get("/other/:id", route, async () => "in");
    app.get("/user/:user/item", route, async () => "in");
    app.post("/item/:id", route, async () => "in");
    app.get("/slow", route, (_request, reply) => reply.send(Readable.from(slowly())));
    app.get("/fails", route, async () => {
      throw new Error("it fails");
    });
    const url = await app.listen({ port: 0, host: "127.0.0.1" });
    return {
      url,
      close: () => {
        app.server.closeAllConnections();
        return app.close();
      },
    };
  },

  hono(limiter, limited) {
    const { list, options } = of<import("hono").Context>(limited, (context) => (name) => context.req.header(name));
    const own = limited.answers && { onDenied: () => new Response("calm", { status: 420 }) };
    const limit = honoRateLimit(limiter, list, { ...options, ...own });
    const app = new Hono();
    app.use(async (context, next) => {
      await waited((name) => context.req.header(name));
      await next();
    });
    if (limited.also) app.use(honoRateLimit(limiter, limited.also, options));
    if (limited.everywhere) app.use(limit);
    const route: import("hono").MiddlewareHandler = limited.everywhere ? (_context, next) => next() : limit;
    app.get("/item/:id", route, (context) => context.text("in"));
    // With a response of its own, whose headers cannot be changed.
    app.get("/other/:id", route, () => fetch("data:text/plain,in"));
    app.post("/item/:id", route, async (context) => context.text(`in ${(await context.req.text()).length}`));
    app.get("/slow", route, () => new Response(Readable.toWeb(Readable.from(slowly())) as ReadableStream));
    app.get("/fails", route, () => {
      throw new Error("it fails");
    });
    const below = new Hono();
    below.get("/item", route, (context) => context.text("in"));
    app.route("/user/:user", below);
    app.onError((_error, context) => context.text("", 500));
    return served(app.fetch);
  },

  fetch(limiter, limited) {
    const { list, options } = of<Request>(
      limited,
      ({ headers }) =>
        (name) =>
          headers.get(name) ?? undefined,
    );
    const own = limited.answers && { onDenied: () => new Response("calm", { status: 420 }) };
    const on = (route?: string) => {
      return fetchRateLimit(limiter, list, {
        ...options,
        ...own,
        ...(route && !limited.everywhere && { route }),
      });
    };
    const routes: [string, RegExp, (request: Request) => Response | Promise<Response>][] = [
      ["GET /item/[id]", /^GET \/item\//, () => new Response("in")],
      ["GET /other/[id]", /^GET \/other\//, () => fetch("data:text/plain,in")],
      ["GET /user/[user]/item", /^GET \/user\//, () => new Response("in")],
      ["POST /item/[id]", /^POST \/item\//, async (request) => new Response(`in ${(await request.text()).length}`)],
      ["GET /slow", /^GET \/slow/, () => new Response(Readable.toWeb(Readable.from(slowly())) as ReadableStream)],
      [
        "GET /fails",
        /^GET \/fails/,
        () => {
          throw new Error("it fails");
        },
      ],
    ];
    const outer = limited.also && fetchRateLimit(limiter, limited.also, options);
    const handlers = routes.map(([route, path, handler]) => {
      const handle = on(route)(handler);
      return { path, handle: outer ? outer(handle) : handle };
    });
    return served(async (request) => {
      await waited((name) => request.headers.get(name) ?? undefined);
      const line = `${request.method} ${new URL(request.url).pathname}`;
      const found = handlers.find(({ path }) => path.test(line));
      return (
        (await found?.handle(request).catch(() => new Response("", { status: 500 }))) ??
        new Response("", { status: 404 })
      );
    });
  },
};

const nowhere: Connection = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("no server")) };
const quiet = { warn() {} };

for (const [name, make] of Object.entries(makes)) {
  describe(name, () => {
    let server: Server;
    let open: OpenClient;
    let limiter: Limiter;
    const apps: App[] = [];

    before(async () => {
      server = await Server.start({ mode: modes[0] as "module" });
      open = (await clients[0]?.open(server.port)) as OpenClient;
      limiter = new Limiter(open.client, { timeout: 10_000 });
    });
    after(async () => {
      await Promise.all(apps.map((app) => app.close()));
      open.close();
      await server.stop();
    });

    async function app(limited: Limited, by: Limiter = limiter) {
      const timeout = by === limiter ? { timeout: 10_000 } : {};
      const made = await make(by, { ...limited, options: { ...timeout, ...limited.options } });
      apps.push(made);
      const get = (path: string, key?: string, more: Record<string, string> = {}) =>
        fetch(made.url + path, { headers: { ...(key !== undefined && { "x-key": key }), ...more } });
      const statuses = async (path: string, key: string, count: number) => {
        const list: number[] = [];
        for (let i = 0; i < count; i++) list.push((await get(path, key)).status);
        return list;
      };
      return { ...made, get, statuses };
    }
    const keys = async () => ((await server.run("KEYS", "*")) as string[]).sort();

    test("100 at once: exactly as many as fit, with the standard's headers and problem", async () => {
      const { get } = await app({ limits: sliding("7/minute", "1000/hour"), options: { denyCache: false } });
      const answers = await Promise.all(Array.from({ length: 100 }, () => get("/item/1", "burst")));
      const passed = answers.filter(({ status }) => status === 200);
      assert.equal(passed.length, 7);
      for (const { headers } of answers) {
        const policies = parseList(headers.get("ratelimit-policy") ?? "");
        assert.deepEqual(
          policies.map(([policy, parameters]) => [policy, parameters.get("q"), parameters.get("w")]),
          [
            ["60s", 7, 60],
            ["3600s", 1000, 3600],
          ],
        );
      }
      const left = passed.map(({ headers }) => Number(parseList(headers.get("ratelimit") ?? "")[0]?.[1].get("r")));
      assert.deepEqual(left.sort(), [0, 1, 2, 3, 4, 5, 6]);
      for (const answer of answers.filter(({ status }) => status !== 200)) {
        assert.equal(answer.status, 429);
        assert.match(answer.headers.get("content-type") ?? "", /^application\/problem\+json/);
        const wait = Number(answer.headers.get("retry-after"));
        assert.ok(wait >= 1 && wait <= 60, `${wait}`);
        const problem = (await answer.json()) as Record<string, unknown>;
        assert.deepEqual([problem.status, problem["violated-policies"]], [429, ["60s"]]);
      }
    });

    test("a route counts by its template", async () => {
      const { get, statuses } = await app({ limits: sliding("2/minute"), options: { prefix: "route:" } });
      assert.deepEqual(await statuses("/item/1", "k", 1), [200]);
      assert.deepEqual(await statuses("/item/2", "k", 1), [200]);
      assert.deepEqual(await statuses("/item/3", "k", 1), [429]);
      assert.deepEqual(await statuses("/other/1", "k", 3), [200, 200, 429]);
      for (const [user, status] of [
        ["1", 200],
        ["2", 200],
        ["user", 429],
      ] as const) {
        assert.equal((await get(`/user/${user}/item`, "k")).status, status);
      }
      if (name === "express") assert.equal((await get("/uSer/3/item", "k")).status, 429);
      const found = (await keys()).filter((key) => key.startsWith("route:"));
      const user = name === "express" ? "/%3A/" : "/%3Auser/";
      const id = name === "fetch" ? ["/[id]", "/[user]/"] : ["/%3Aid", user];
      assert.deepEqual(found, [
        `route:GET /item${id[0]} sliding-2/60s:{k}`,
        `route:GET /other${id[0]} sliding-2/60s:{k}`,
        `route:GET /user${id[1]}item sliding-2/60s:{k}`,
      ]);
    });

    test("a name is one limit on all routes", async () => {
      const { statuses } = await app({ limits: sliding("2/minute", { name: "all" }), options: { prefix: "name:" } });
      assert.deepEqual(await statuses("/item/1", "k", 1), [200]);
      assert.deepEqual(await statuses("/other/1", "k", 2), [200, 429]);
      assert.deepEqual(
        (await keys()).filter((key) => key.startsWith("name:")),
        ["name:all:{k}"],
      );
    });

    test("declared for all routes", async () => {
      const rule = sliding("2/minute", name === "fastify" ? { name: "all" } : {});
      const { statuses } = await app({ limits: rule, everywhere: true, options: { prefix: "everywhere:" } });
      assert.deepEqual(await statuses("/item/1", "k", 1), [200]);
      assert.deepEqual(await statuses("/other/1", "k", 2), [200, 429]);
      assert.deepEqual(await statuses("/item/1", "other", 1), [200]);
    });

    test("several rules are one decision: what one denies counts in none", async () => {
      const read = (read: Read) => read("x-org");
      const { get } = await app({
        limits: [
          { rule: sliding("5/minute", { name: "user" }) },
          { rule: fixed("2/minute", { name: "org", anchored: true }), key: read },
        ],
        options: { prefix: "several:" },
      });
      const ask = async (user: string) => (await get("/item/1", user, { "x-org": "o" })).status;
      assert.deepEqual([await ask("a"), await ask("a"), await ask("a"), await ask("b")], [200, 200, 429, 429]);
      assert.equal((await limiter.peek("several:user:{a}", sliding("5/minute"), { cost: 0 })).used, 2);
      assert.equal((await limiter.peek("several:user:{b}", sliding("5/minute"), { cost: 0 })).used, 0);
      const denied = await get("/item/1", "c", { "x-org": "o" });
      assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], ["org"]);
      assert.ok(Number(denied.headers.get("retry-after")) >= 1);
    });

    test("costs, and rules by request", async () => {
      const { get } = await app({
        limits: [
          {
            rule: (read) => (read("x-plan") === "free" ? sliding("10/minute", { name: "free" }) : undefined),
            cost: (read) => Number(read("x-cost")),
          },
        ],
        options: { prefix: "costs:" },
      });
      const ask = async (cost: string, plan: string) =>
        (await get("/item/1", "k", { "x-cost": cost, "x-plan": plan })).status;
      assert.deepEqual([await ask("6", "free"), await ask("6", "free"), await ask("4", "free")], [200, 429, 200]);
      assert.equal((await limiter.peek("costs:free:{k}", sliding("10/minute"), { cost: 0 })).used, 10);
      const unlimited = await get("/item/1", "k", { "x-cost": "99", "x-plan": "paid" });
      assert.deepEqual([unlimited.status, unlimited.headers.get("ratelimit")], [200, null]);
    });

    test("a lease is held until the response has been sent", async () => {
      const rule = lease(2, 60, { name: "places" });
      const { get } = await app({ limits: [{ rule }, { rule: sliding("100/minute") }], options: { prefix: "lease:" } });
      const held = async () => await server.run("ZCARD", "lease:places:{k}");
      const first = await get("/slow", "k");
      const second = await get("/slow", "k");
      assert.deepEqual([first.status, second.status, await held()], [200, 200, 2]);
      const denied = await get("/slow", "k");
      assert.equal(denied.status, 429);
      const policies = parseList(denied.headers.get("ratelimit-policy") ?? "").map(([policy]) => policy);
      assert.deepEqual(policies, ["places", "60s"]);
      assert.equal((await first.text()).length, 25);
      await second.text();
      await eventually("both are released", async () => (await held()) === 0);
      assert.equal((await get("/fails", "k")).status, 500);
      assert.equal(await (await get("/item/1", "k")).text(), "in");
      await eventually("they are released", async () => (await held()) === 0);
    });

    test("a client that leaves gives its lease back", async () => {
      const rule = lease(3, 60, { name: "left" });
      const { url } = await app({ limits: rule, options: { prefix: "left:" } });
      const held = async () => await server.run("ZCARD", "left:left:{k}");
      const leaving = send(`${url}/slow`, { headers: { "x-key": "k" } });
      leaving.on("error", () => {});
      await new Promise<void>((resolve) => leaving.on("response", (response) => response.once("data", resolve)).end());
      assert.equal(await held(), 1);
      leaving.destroy();
      await eventually("it is released", async () => (await held()) === 0);
      // Before the decision: the request is on its way to the server while its client leaves.
      server.pause();
      const early = send(`${url}/slow`, { headers: { "x-key": "k" } });
      early.on("error", () => {});
      early.end();
      await sleep(300);
      early.destroy();
      await sleep(100);
      server.resume();
      await sleep(300);
      await eventually("it is released, too", async () => (await held()) === 0);
    });

    test("a client that has left before the limit is reached holds nothing", async () => {
      const { url } = await app({ limits: lease(2, 60, { name: "gone" }), options: { prefix: "gone:" } });
      const asked = async () =>
        Number(/calls=(\d+)/.exec(await server.info("commandstats", "cmdstat_rl.all"))?.[1] ?? 0);
      for (let i = 0; i < 3; i++) {
        const before = await asked();
        const leaving = send(`${url}/slow`, { headers: { "x-key": "k", "x-wait": "200" } });
        leaving.on("error", () => {});
        leaving.end();
        await sleep(100);
        leaving.destroy();
        await eventually("the limit is reached", async () => (await asked()) > before);
      }
      await eventually("nothing is held", async () => (await server.run("ZCARD", "gone:gone:{k}")) === 0);
    });

    test("denied before the body is read", async () => {
      const { url, get } = await app({ limits: sliding("0/minute") });
      assert.equal((await get("/item/1", "k")).status, 429);
      const { hostname, port } = new URL(url);
      const socket = connect(Number(port), hostname);
      socket.write(
        `POST /item/1 HTTP/1.1\r\nhost: x\r\nx-key: k\r\ncontent-type: text/plain\r\ncontent-length: 1000000\r\n\r\nabc`,
      );
      const [answer] = (await Promise.race([
        new Promise((resolve) => socket.once("data", (data) => resolve([String(data)]))),
        sleep(20_000, ["nothing"]),
      ])) as [string];
      socket.destroy();
      assert.match(answer, /^HTTP\/1\.1 429 /);
    });

    test("a body that is let in is read", async () => {
      const { url } = await app({ limits: sliding("5/minute") });
      const answer = await fetch(`${url}/item/1`, {
        method: "POST",
        body: "abc",
        headers: { "x-key": "body", "content-type": "text/plain" },
      });
      assert.equal(answer.status, 200);
    });

    test("denials of the application's own", async () => {
      const { get } = await app({ limits: sliding("0/minute"), answers: true });
      const denied = await get("/item/1", "k");
      assert.deepEqual([denied.status, await denied.text()], [420, "calm"]);
      assert.match(denied.headers.get("ratelimit-policy") ?? "", /q=0/);
    });

    test("without an identity", async () => {
      const refusing = await app({ limits: sliding("5/minute") });
      const refused = await refusing.get("/item/1");
      assert.equal(refused.status, 403);
      assert.match(refused.headers.get("content-type") ?? "", /^application\/problem\+json/);
      assert.equal((await refusing.get("/item/1", "")).status, 403);
      const allowing = await app({ limits: sliding("0/minute"), options: { withoutIdentity: "allow" } });
      assert.equal((await allowing.get("/item/1")).status, 200);
    });

    test("a permanent error is never let through", async () => {
      await server.run("HSET", "broken:all:{k}", "a", "b");
      const { get } = await app({
        limits: sliding("5/minute", { name: "all" }),
        options: { prefix: "broken:", whenUnavailable: "open" },
      });
      assert.equal((await get("/item/1", "k")).status, 500);
    });

    for (const [policy, expected] of [
      ["closed", [503, 503, 503, 503]],
      ["open", [200, 200, 200, 200]],
      ["local", [200, 200, 429, 429]],
    ] as const) {
      test(`the server is unavailable: ${policy}`, async () => {
        const away = new Limiter(nowhere, { logger: quiet });
        const one = await app({ limits: sliding("2/minute"), options: { whenUnavailable: policy } }, away);
        assert.deepEqual(await one.statuses("/item/1", "k", 4), [...expected]);
        const { headers } = await one.get("/item/1", "k");
        assert.equal(headers.has("ratelimit"), policy === "local", "nobody has counted what is open");
        const rules = [{ rule: sliding("2/minute", { name: "two" }) }, { rule: lease(1, 60) }];
        const two = await app({ limits: rules, options: { whenUnavailable: policy, prefix: "2:" } }, away);
        const slow = two.get("/slow", "k");
        assert.equal((await slow).status, expected[0]);
        // There are no leases without the server.
        assert.equal((await two.get("/slow", "k")).status, expected[0]);
        await (await slow).text();
        assert.equal((await two.get("/slow", "k")).status, expected[2]);
      });
    }

    test("the server is unavailable: open unless it is said otherwise, by one line in the log", async () => {
      const lines: string[] = [];
      const logger = { warn: (line: string) => lines.push(line) };
      const { statuses } = await app({ limits: sliding("1/minute") }, new Limiter(nowhere, { logger }));
      assert.deepEqual(await statuses("/item/1", "k", 3), [200, 200, 200]);
      assert.deepEqual(lines.length, 1, String(lines));
      const closed = new Limiter(nowhere, { logger, whenUnavailable: "closed" });
      assert.deepEqual(await (await app({ limits: sliding("1/minute") }, closed)).statuses("/item/1", "k", 1), [503]);
    });

    test("two limits of one response have names that differ, also in the problem", async () => {
      const { get } = await app({
        limits: sliding("1/minute"),
        also: sliding("9/minute"),
        options: { prefix: "names:" },
      });
      const [passed, denied] = [await get("/item/1", "k"), await get("/item/1", "k")];
      for (const { headers } of [passed, denied]) {
        const names = (field: string) => parseList(headers.get(field) ?? "").map(([name]) => name);
        for (const field of ["ratelimit-policy", "ratelimit"]) assert.deepEqual(names(field).sort(), ["60s", "60s-2"]);
      }
      const [inner] = parseList(denied.headers.get("ratelimit") ?? "").filter(([, item]) => item.get("r") === 0);
      assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], [inner?.[0]]);
    });
  });
}

test("a Fetch request that is aborted gives its lease back, though nobody reads or cancels the body", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  t.after(async () => {
    open.close();
    await server.stop();
  });
  const limited = fetchRateLimit(new Limiter(open.client), lease(1, 60, { name: "one" }), { key: () => "k" });
  const handle = limited(() => new Response(Readable.toWeb(Readable.from(slowly())) as ReadableStream));
  const leaving = new AbortController();
  const answer = await handle(new Request("http://localhost/", { signal: leaving.signal }));
  assert.deepEqual([answer.status, await server.run("ZCARD", "rl:one:{k}")], [200, 1]);
  leaving.abort();
  await eventually("it is released", async () => (await server.run("ZCARD", "rl:one:{k}")) === 0);
  const failing = limited(() => Promise.reject(new Error("it fails")));
  await assert.rejects(failing(new Request("http://localhost/")), /it fails/);
  await eventually("it is released", async () => (await server.run("ZCARD", "rl:one:{k}")) === 0);
});

test("a body that nobody reads holds no lease: of a HEAD, and where the application's own time-out has answered", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const limiter = new Limiter(open.client);
  const slow = () => new Response(Readable.toWeb(Readable.from(slowly())) as ReadableStream);
  const options = { key: () => "k", timeout: 10_000 };
  const app = new Hono();
  app.use("/late", timeout(50));
  app.get("/slow", honoRateLimit(limiter, lease(1, 60, { name: "one" }), options), slow);
  app.get("/late", honoRateLimit(limiter, lease(1, 60, { name: "one" }), options), async () => {
    await sleep(200);
    return slow();
  });
  const { url, close } = await served(app.fetch);
  t.after(async () => {
    await close();
    open.close();
    await server.stop();
  });
  const free = async () => (await server.run("ZCARD", "rl:one:{k}")) === 0;
  assert.equal((await fetch(`${url}/slow`, { method: "HEAD" })).status, 200);
  await eventually("it is released", free);
  assert.equal((await fetch(`${url}/late`)).status, 504);
  await eventually("it is released, too", free);
  // As in Next.js, which answers a HEAD by the handler of GET.
  const handle = fetchRateLimit(limiter, lease(1, 60, { name: "one" }), options)(slow);
  assert.equal((await handle(new Request(url, { method: "HEAD" }))).status, 200);
  await eventually("it is released as well", free);
});

test("a Fetch handler may upgrade its request, whose response cannot be copied", async () => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const upgrade = Object.defineProperty(new Response(), "status", { value: 101 });
  const limited = fetchRateLimit(limiter, sliding("1/minute"), { key: () => "k" });
  assert.equal(await limited(() => upgrade)(new Request("http://localhost/")), upgrade);
  assert.equal((await limited(() => upgrade)(new Request("http://localhost/"))).status, 429);
});

test("hono: a denial keeps the headers of the middleware around the limit, and an upgrade is not copied", async () => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: quiet });
  const upgrade = Object.defineProperty(new Response(), "status", { value: 101 });
  const own = { onDenied: () => new Response("calm", { status: 420, headers: { "X-Calm": "1" } }) };
  const app = new Hono();
  app.use(cors({ origin: "http://elsewhere" }), async (context, next) => {
    context.header("X-Outer", "1");
    await next();
  });
  app.get("/plain", honoRateLimit(limiter, sliding("0/minute"), { key: () => "k" }));
  app.get("/own", honoRateLimit(limiter, sliding("0/minute"), { key: () => "k", ...own }));
  const socket = new Hono().get("/", honoRateLimit(limiter, sliding("1/minute"), { key: () => "k" }), () => upgrade);
  for (const [path, status] of [
    ["/plain", 429],
    ["/own", 420],
  ] as const) {
    const answer = await app.request(path, { headers: { Origin: "http://elsewhere" } });
    const told = ["Access-Control-Allow-Origin", "X-Outer", "RateLimit"].map((name) => answer.headers.get(name));
    assert.deepEqual([answer.status, ...told], [status, "http://elsewhere", "1", '"60s";r=0']);
  }
  assert.equal((await app.request("/own")).headers.get("X-Calm"), "1");
  const plain = new Hono().use((context, next) => {
    context.header("X-Outer", "1");
    return next();
  });
  plain.get("/", honoRateLimit(limiter, sliding("0/minute"), { key: () => "k" }));
  assert.equal((await plain.request("/")).headers.get("X-Outer"), "1");
  assert.equal((await socket.request("/")).status, 101);
  assert.equal((await socket.request("/")).status, 429);
});

test("a Fetch handler may return nothing, as Bun's do after an upgrade", async () => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "open", logger: { warn() {} } });
  const limited = fetchRateLimit(limiter, sliding("1/hour"), { key: () => "k" });
  assert.equal(await limited((() => undefined) as never)(new Request("http://x")), undefined);
});

test("express: where another has answered meanwhile nothing is added to its answer", async (t) => {
  let answered = () => {};
  const over = new Promise<void>((resolve) => {
    answered = resolve;
  });
  const slow = { keyPrefix: "", send: () => over.then(() => Promise.reject(new UnavailableError("away"))) };
  const limiter = new Limiter(slow, { whenUnavailable: "open", logger: { warn() {} } });
  const errors: unknown[] = [];
  const app = express().use((_request, response, next) => {
    next();
    response.status(503).end("late");
    response.on("close", answered);
  });
  app.use(expressRateLimit(limiter, sliding("1/hour"), { key: () => "k", timeout: 10_000 }));
  app.use(() => void errors.push("it was asked"));
  app.use(((error, _request, _response, _next) => void errors.push(error)) as express.ErrorRequestHandler);
  const at = await listening(createServer(app));
  t.after(() => at.close());
  assert.equal((await fetch(at.url)).status, 503);
  await sleep(50);
  assert.deepEqual(errors, []);
});

test("express: a lease ends at once where the answer has been sent before, though the connection stays", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const app = express();
  app.use((_request, response, next) => {
    response.status(503).send("late");
    response.once("close", next);
  });
  app.use(
    expressRateLimit(new Limiter(open.client), lease(1, 60, { name: "one" }), { key: () => "k", timeout: 10_000 }),
  );
  const { url, close } = await listening(createServer({ keepAliveTimeout: 60_000 }, app));
  t.after(async () => {
    await close();
    open.close();
    await server.stop();
  });
  assert.equal((await fetch(url)).status, 503);
  const asked = async () => /calls=1,/.test(await server.info("commandstats", "cmdstat_rl.all"));
  await eventually("it was asked for", asked);
  await eventually("it is released", async () => (await server.run("ZCARD", "rl:one:{k}")) === 0);
});

test("an application that is mounted in two places has two limits", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const limiter = new Limiter(open.client, { timeout: 10_000 });
  const key = () => "k";
  const rule = sliding("1/hour");
  const koaOptions = { key, prefix: "koa:", timeout: 10_000 };
  const koaApp = () => {
    const router = new KoaRouter();
    router.get("/item/:id", koaRateLimit(limiter, rule, koaOptions), (context) => {
      context.body = "in";
    });
    const app = new Koa().use(koaRateLimit(limiter, sliding("2/hour"), koaOptions));
    app.use(router.routes() as unknown as Koa.Middleware);
    return app;
  };
  const honoOptions = { key, prefix: "hono:", timeout: 10_000 };
  const honoApp = () => {
    const app = new Hono().use(honoRateLimit(limiter, sliding("2/hour"), honoOptions));
    app.get("/item/:id", honoRateLimit(limiter, rule, honoOptions), (context) => context.text("in"));
    return app;
  };
  const expressApp = () => {
    const app = express();
    app.get(
      "/item/:id",
      expressRateLimit(limiter, rule, { key, prefix: "express:", timeout: 10_000 }),
      (_request, response) => {
        response.send("in");
      },
    );
    return app;
  };
  const [within, hono] = [new Koa().use(mount("/deep", koaApp())), new Hono()];
  for (const path of ["/a", "/b"]) hono.mount(path, honoApp().fetch);
  const apps = {
    koa: await listening(
      createServer(new Koa().use(mount("/a", koaApp())).use(mount("/b", koaApp())).use(mount("/c", within)).callback()),
    ),
    hono: await served(hono.fetch),
    express: await listening(createServer(express().use("/a", expressApp()).use("/b", expressApp()))),
  };
  t.after(async () => {
    for (const app of Object.values(apps)) await app.close();
    open.close();
    await server.stop();
  });
  for (const [name, { url }] of Object.entries(apps)) {
    await server.run("FLUSHALL");
    const places = name === "koa" ? ["/a", "/b", "/c/deep"] : ["/a", "/b"];
    for (const place of places) {
      assert.equal((await fetch(`${url}${place}/item/1?q=/item/1`)).status, 200, `${name} ${place}`);
      assert.equal((await fetch(`${url}${place}/item/%31`)).status, 429, `${name} ${place}`);
      const encoded = place.replace("/", "/%").replace(/%./, (text) => `%${text.charCodeAt(1).toString(16)}`);
      assert.notEqual((await fetch(`${url}${encoded}/item/1`)).status, 200, `${name} ${encoded}`);
    }
    // A whole URL whose port is out of range.
    const odd = send({ port: new URL(url).port, path: "http://x:99999/a/item/1" }).end();
    const [{ statusCode }] = await once(odd, "response");
    assert.equal(statusCode, name === "hono" ? 400 : 429, name);
    const keys = (await server.run("KEYS", "*GET*")) as string[];
    const expected = places.map((place) => `${name}:GET ${place}/item/%3Aid sliding-1/3600s:{k}`);
    assert.deepEqual(keys.sort(), expected);
  }
});

test("a limit of a route is one for all of its methods, and a HEAD is a GET", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const limiter = new Limiter(open.client, { timeout: 10_000 });
  const options = { key: () => "k", timeout: 10_000 };
  const [one, two] = [sliding("1/hour"), sliding("2/hour")];
  const answer = (_request: unknown, response: express.Response) => void response.send("in");
  const ofExpress = express();
  ofExpress.get("/get", expressRateLimit(limiter, one, { ...options, prefix: "express:" }), answer);
  ofExpress.all("/all", expressRateLimit(limiter, two, { ...options, prefix: "express:" }), answer);
  const both = ofExpress.route("/both");
  const limit = expressRateLimit(limiter, two, { ...options, prefix: "express:" });
  both.all(limit).get(answer).post(answer).put(answer);
  const router = new KoaRouter();
  const inside: Koa.Middleware = (context) => {
    context.body = "in";
  };
  router.get("/get", koaRateLimit(limiter, one, { ...options, prefix: "koa:" }), inside);
  router.all("/all", koaRateLimit(limiter, two, { ...options, prefix: "koa:" }), inside);
  router.register(
    "/both",
    ["GET", "POST", "PUT"],
    [koaRateLimit(limiter, two, { ...options, prefix: "koa:" }), inside],
  );
  const ofFastify = fastify();
  const hook = (rule: typeof one) => ({
    onRequest: fastifyRateLimit(limiter, rule, { ...options, prefix: "fastify:" }),
  });
  ofFastify.get("/get", hook(one), async () => "in");
  ofFastify.all("/all", hook(two), async () => "in");
  ofFastify.route({ method: ["GET", "POST", "PUT"], url: "/both", ...hook(two), handler: async () => "in" });
  const ofHono = new Hono();
  ofHono.get("/get", honoRateLimit(limiter, one, { ...options, prefix: "hono:" }), (context) => context.text("in"));
  ofHono.all("/all", honoRateLimit(limiter, two, { ...options, prefix: "hono:" }), (context) => context.text("in"));
  const apps = {
    express: await listening(createServer(ofExpress)),
    koa: await listening(createServer(new Koa().use(router.routes() as unknown as Koa.Middleware).callback())),
    fastify: {
      url: await ofFastify.listen({ port: 0, host: "127.0.0.1" }),
      close: () => {
        ofFastify.server.closeAllConnections();
        return ofFastify.close();
      },
    },
    hono: await served(ofHono.fetch),
  };
  t.after(async () => {
    for (const app of Object.values(apps)) await app.close();
    open.close();
    await server.stop();
  });
  for (const [name, { url }] of Object.entries(apps)) {
    const statuses = async (path: string, ...methods: string[]) => {
      const list = [];
      for (const method of methods) list.push((await fetch(url + path, { method })).status);
      return list;
    };
    assert.deepEqual(await statuses("/get", "GET", "HEAD"), [200, 429], name);
    for (const path of name === "hono" ? ["/all"] : ["/all", "/both"]) {
      assert.deepEqual(await statuses(path, "GET", "POST", "PUT"), [200, 200, 429], `${name} ${path}`);
    }
  }
});

test("express: what a client puts into a parameter changes no template", async (t) => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const limit = () => expressRateLimit(limiter, sliding("1/hour"), { key: () => "k", timeout: 10_000 });
  const answer = (_request: unknown, response: express.Response) => void response.send("in");
  const [files, items] = [express.Router(), express.Router({ mergeParams: true })];
  files.get("/*path", limit(), answer);
  items.get("/item/:idx", limit(), answer);
  const app = await listening(
    createServer(
      express()
        .use("/files", files)
        .use(/^\/odd[^/]*/, files)
        .use("/org/:id", items),
    ),
  );
  t.after(() => app.close());
  const status = async (path: string) => (await fetch(app.url + path)).status;
  assert.deepEqual(
    [await status("/files/a"), await status("/files/files")],
    [200, 429],
    "a value as a part of the base",
  );
  assert.deepEqual(
    [await status("/org/1/item/1"), await status("/org/2/item/2")],
    [200, 429],
    "a name that begins alike",
  );
  assert.equal(await status("/odd%E0/a"), 200, "a base that cannot be decoded");
});

test("express: a value that is in a path twice makes no template of its own", async (t) => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const limit = expressRateLimit(limiter, sliding("1/hour"), { key: () => "k", timeout: 10_000 });
  const below = express.Router({ mergeParams: true }).get("/", limit, (_request, response) => void response.send("in"));
  const app = await listening(createServer(express().use("/team/:team/user/:user", below)));
  t.after(() => app.close());
  const status = async (path: string) => (await fetch(app.url + path)).status;
  assert.deepEqual([await status("/team/a/user/b"), await status("/team/a/user/a")], [200, 429]);
});

test("express: a lease of a WebSocket ends with its connection, and a denial is answered", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const limit = expressRateLimit(new Limiter(open.client), lease(1, 60), { key: () => "k", timeout: 10_000 });
  const app = express().use(limit, (request) => void request.socket.write("in"));
  const http = createServer();
  // As express-ws does: the response has no socket, and its writeHead returns nothing.
  http.on("upgrade", (request, socket) => {
    socket.resume().on("end", () => socket.destroy());
    const response = new ServerResponse(request);
    response.writeHead = ((status: number) => void socket.write(`${status}`)) as never;
    app(request, response);
  });
  const at = await listening(http);
  t.after(async () => {
    at.close();
    open.close();
    await server.stop();
  });
  const told = async () => {
    const socket = connect(Number(new URL(at.url).port));
    socket.write("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    const [text] = await once(socket, "data");
    return { socket, text: String(text) };
  };
  const first = await told();
  const second = await told();
  assert.match(`${first.text} ${second.text}`, /^in 429/);
  first.socket.destroy();
  second.socket.destroy();
  const places = () => server.run("ZCARD", "rl:lease-1/60s:{k}");
  await eventually("the place is free", async () => (await places()) === 0);
});

test("fastify: a route is the same with and without a slash behind it", async () => {
  const keys: string[] = [];
  const onDecision = ({ key }: { readonly key: unknown }) => void keys.push(String(key));
  const limiter = new Limiter(nowhere, { whenUnavailable: "open", logger: { warn() {} }, onDecision });
  const hook = fastifyRateLimit(limiter, sliding("1/hour"), { key: () => "k" });
  for (const url of ["/login", "/login/", "/"]) {
    const reply = { raw: { appendHeader() {} } };
    await hook({ method: "GET", routeOptions: { method: "GET", url }, raw: {} } as never, reply as never);
  }
  assert.deepEqual(
    keys,
    ["/login", "/login", "/"].map((path) => `rl:GET ${path} sliding-1/3600s:{k}`),
  );
});

test("koa: an error whose headers are a getter stays the error", async (t) => {
  class Upstream extends Error {
    get headers() {
      return { "X-Upstream": "1" };
    }
  }
  const nowhere = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("away")) };
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const app = new Koa();
  const seen: unknown[] = [];
  app.on("error", (error) => seen.push(error));
  app.use(koaRateLimit(limiter, sliding("9/hour"), { key: () => "k" })).use(() => {
    throw new Upstream("elsewhere");
  });
  const at = await listening(createServer(app.callback()));
  t.after(() => at.close());
  const { status, headers } = await fetch(at.url);
  assert.deepEqual([status, headers.get("X-Upstream"), headers.has("RateLimit")], [500, "1", true]);
  assert.ok(seen[0] instanceof Upstream, String(seen[0]));
});

test("local: of several rules one that is forced counts and denies nothing", async (t) => {
  const nowhere = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("away")) };
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const rules = [sliding("1/hour", { name: "seen", force: true }), sliding("3/hour", { name: "limit" })];
  const limit = expressRateLimit(limiter, rules, { key: () => "k" });
  const app = await listening(createServer(express().use(limit, (_request, response) => void response.send("in"))));
  t.after(() => app.close());
  const answers = [];
  for (let i = 0; i < 4; i++) answers.push(await fetch(app.url));
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 200, 429],
  );
  assert.match((await answers[3]?.text()) ?? "", /"violated-policies":\["limit"\]/);
});

test("a request that weighs nothing looks whether there is room, also under one rule", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const rule = sliding("1/hour");
  const cost = ({ headers }: express.Request) => Number(headers["x-cost"]);
  const limit = expressRateLimit(new Limiter(open.client), rule, { key: () => "k", cost, timeout: 10_000 });
  const app = await listening(createServer(express().use(limit, (_request, response) => void response.send("in"))));
  t.after(async () => {
    app.close();
    open.close();
    await server.stop();
  });
  const answers: number[] = [];
  for (const weight of ["0", "0", "1", "0"]) {
    answers.push((await fetch(app.url, { headers: { "X-Cost": weight } })).status);
  }
  assert.deepEqual(answers, [200, 200, 200, 429]);
});

test("a path that a client makes long makes no long key", async (t) => {
  const keys: string[] = [];
  const nowhere = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("away")) };
  const limiter = new Limiter(nowhere, {
    logger: { warn() {} },
    onDecision: ({ key }) => void keys.push(String(key)),
  });
  const below = express.Router().get("/item", expressRateLimit(limiter, sliding("1/hour")), (_request, response) => {
    response.send("in");
  });
  const app = await listening(createServer(express().use("/org/:org", below)));
  t.after(() => app.close());
  assert.equal((await fetch(`${app.url}/org/${"x".repeat(10_000)}/item`)).status, 200);
  assert.ok(keys.length === 1 && keys.every((key) => key.length < 1000), `${keys.map(({ length }) => length)}`);
});

test("koa: an error's response has the headers of all limits, and those of its own request", async (t) => {
  const limiter = new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } });
  const options = { key: () => "k", timeout: 10_000 };
  // One error for all requests, as some applications have it.
  const failure = Object.assign(new Error("no"), { status: 404, expose: true, headers: { "X-Own": "1" } });
  const app = new Koa()
    .use(koaRateLimit(limiter, sliding("10/hour"), options))
    .use(koaRateLimit(limiter, sliding("20/minute"), options))
    .use(() => {
      throw failure;
    });
  const { url, close } = await listening(createServer(app.callback()));
  t.after(close);
  for (const [first, second] of [
    [9, 19],
    [8, 18],
  ]) {
    const { status, headers } = await fetch(url);
    assert.deepEqual([status, headers.get("X-Own")], [404, "1"]);
    const told = [...(headers.get("RateLimit") ?? "").matchAll(/r=(\d+)/g)].map(([, left]) => Number(left));
    assert.deepEqual(told, [first, second]);
  }
});

test("fastify: a plugin, and limits in the config of routes", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const app = fastify();
  t.after(async () => {
    await app.close();
    open.close();
    await server.stop();
  });
  const limiter = new Limiter(open.client, { timeout: 10_000 });
  const shared = { limiter, key: () => "k", prefix: "plugin:", timeout: 10_000 };
  await app.register(rateLimitPlugin, { ...shared, limits: sliding("4/hour") });
  const calm = (_request: FastifyRequest, reply: FastifyReply) => reply.code(420).send("calm");
  app.get("/a", async () => "in");
  app.get("/item/:id", { config: { rateLimit: sliding("1/hour") } }, async () => "in");
  app.get("/free", { config: { rateLimit: false } }, async () => "in");
  app.get("/calm", { config: { rateLimit: { limits: sliding("0/hour"), onDenied: calm } } }, async () => "in");
  app.get("/hooked", { onRequest: async (_, reply) => void reply.header("x-own", "1") }, async () => "in");
  app.register(async (child) => void child.get("/b", async () => "in"), { prefix: "/child" });
  const get = async (url: string, method: "GET" | "HEAD" = "GET") => (await app.inject({ method, url })).statusCode;
  assert.deepEqual([await get("/a"), await get("/child/b"), await get("/a", "HEAD")], [200, 200, 200]);
  assert.equal((await app.inject("/hooked")).headers["x-own"], "1");
  assert.deepEqual([await get("/a"), await get("/child/b")], [429, 429], "they count together");
  assert.deepEqual([await get("/item/1"), await get("/item/2")], [200, 429]);
  assert.deepEqual([await get("/free"), await get("/calm")], [200, 420]);
  assert.deepEqual(((await server.run("KEYS", "*")) as string[]).sort(), [
    "plugin:GET /item/%3Aid sliding-1/3600s:{k}",
    "plugin:sliding-4/3600s:{k}",
  ]);
  const nested = fastify();
  t.after(() => nested.close());
  await nested.register(rateLimitPlugin, { ...shared, limits: sliding("9/hour", { name: "outer" }) });
  await nested.register(async (child) => {
    await child.register(rateLimitPlugin, { ...shared, limits: sliding("8/hour", { name: "inner" }) });
    child.get("/all", async () => "in");
    child.get("/own", { config: { rateLimit: sliding("2/hour", { name: "own" }) } }, async () => "in");
  });
  const own = [];
  for (let i = 0; i < 3; i++) own.push((await nested.inject("/own")).statusCode);
  assert.deepEqual(own, [200, 200, 429], "its own limit counts a request once");
  const all = (await nested.inject("/all")).headers.ratelimit;
  assert.deepEqual(all, ['"outer";r=8;t=3600', '"inner";r=7;t=3600'], "those of the plugins add up");
  const wrong = fastify();
  await wrong.register(rateLimitPlugin, shared);
  const route = () => wrong.get("/", { config: { rateLimit: "5/minute" as never } }, async () => "in");
  assert.throws(route, /made by sliding/);
});

test("what cannot be is refused when it is made", () => {
  const limiter = new Limiter(nowhere);
  const wrong = (...args: unknown[]) => (expressRateLimit as (...args: unknown[]) => unknown)(limiter, ...args);
  assert.throws(() => wrong("5/minute"), /made by sliding/);
  assert.throws(() => wrong([]), /needs a rule/);
  assert.throws(() => wrong(sliding("5/minute"), { keys: 1 }), /no option keys/);
  assert.throws(() => wrong(lease(1, 1, { holder: "me" })), /no holder/);
  assert.throws(() => wrong(sliding("5/minute"), { withoutIdentity: "maybe" }), /withoutIdentity/);
  assert.throws(() => (fetchRateLimit as (...args: unknown[]) => unknown)(limiter, sliding("1/s"), {}), /needs a key/);
  assert.throws(() => expressRateLimit({} as Limiter, sliding("1/s")), /Limiter/);
});

/** The stores inside their frameworks, over real HTTP: how many get in, and what the headers say. */

import assert from "node:assert/strict";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import fastifyRateLimit from "@fastify/rate-limit";
import { serve } from "@hono/node-server";
import express from "express";
import { rateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { Limiter, sliding } from "redis-rl";
import { expressRateLimitStore } from "redis-rl/express-rate-limit";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { honoRateLimiterStore } from "redis-rl/hono-rate-limiter";
import { RateLimiterRl } from "redis-rl/rate-limiter-flexible";
import { parseDictionary, parseItem, parseList } from "structured-headers";
import { clients, type OpenClient } from "./support/clients.js";
import { modes, Server } from "./support/server.js";

const LIMIT = 7;

interface App {
  readonly url: string;
  close(): Promise<unknown>;
}

async function listen(server: HttpServer): Promise<App> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    close: () => new Promise((resolve) => server.close(resolve)),
  };
}

/** A hundred requests at once; the headers of those let in and of those denied. */
async function burst(app: App): Promise<{ passed: Headers[]; denied: Headers[] }> {
  const answers = await Promise.all(Array.from({ length: 100 }, () => fetch(app.url)));
  await Promise.all(answers.map((answer) => answer.arrayBuffer()));
  const other = answers.find(({ status }) => status !== 200 && status !== 429);
  assert.equal(other?.status, undefined);
  const having = (status: number) => answers.filter((answer) => answer.status === status).map(({ headers }) => headers);
  return { passed: having(200), denied: having(429) };
}

const integer = (headers: Headers, name: string) => Number(parseItem(headers.get(name) ?? "")[0]);

for (const mode of modes) {
  describe(mode, () => {
    let server: Server;
    let open: OpenClient;
    let limiter: Limiter;

    before(async () => {
      server = await Server.start({ mode });
      open = (await clients[0]?.open(server.port)) as OpenClient;
      limiter = new Limiter(open.client, { timeout: 10_000 });
    });
    after(async () => {
      open.close();
      await server.stop();
    });

    for (const algorithm of ["sliding", "fixed"] as const) {
      const prefix = `${algorithm}:`;

      test(`express-rate-limit, ${algorithm}`, async () => {
        const app = express();
        const store = expressRateLimitStore(limiter, { algorithm, timeout: 10_000, prefix: `express:${prefix}` });
        app.use(
          rateLimit({ windowMs: 60_000, limit: LIMIT, standardHeaders: "draft-8", keyGenerator: () => "one", store }),
        );
        app.get("/", (_request, response) => void response.send("ok"));
        const http = await listen(createServer(app));
        const { passed, denied } = await burst(http);
        await http.close();
        assert.equal(passed.length, LIMIT);
        const remaining = passed.map((headers) => {
          const [[name, parameters] = []] = parseList(headers.get("ratelimit") ?? "");
          assert.equal(name, "7-in-1min");
          assert.ok(Number(parameters?.get("t")) > 0 && Number(parameters?.get("t")) <= 60);
          return Number(parameters?.get("r"));
        });
        assert.deepEqual(
          remaining.sort((a, b) => a - b),
          [0, 1, 2, 3, 4, 5, 6],
        );
        for (const headers of denied) {
          const wait = integer(headers, "retry-after");
          assert.ok(wait >= 1 && wait <= 60, `${wait}`);
          const [[, policy] = []] = parseList(headers.get("ratelimit-policy") ?? "");
          assert.deepEqual([policy?.get("q"), policy?.get("w")], [LIMIT, 60]);
        }
        const { totalHits = 0 } = (await store.get("one")) ?? {};
        // A counter counts denials, except for those that are remembered in this process.
        if (algorithm === "sliding") assert.equal(totalHits, LIMIT);
        else assert.ok(totalHits > LIMIT && totalHits <= 100, `${totalHits}`);
        await store.resetKey("one");
        assert.equal(await store.get("one"), undefined);
      });

      test(`express-rate-limit, ${algorithm}: skipFailedRequests takes back what failed and nothing else`, async () => {
        const app = express();
        const store = expressRateLimitStore(limiter, {
          algorithm,
          timeout: 10_000,
          prefix: `express-skip:${prefix}`,
        });
        app.use(
          rateLimit({
            windowMs: 60_000,
            limit: 2,
            skipFailedRequests: true,
            keyGenerator: () => "one",
            validate: false,
            store,
          }),
        );
        app.get("/", (request, response) => void response.sendStatus(request.query.fail ? 500 : 200));
        const http = await listen(createServer(app));
        const ask = async (query = "") => (await fetch(http.url + query)).status;
        const settled = async (hits: number) => {
          for (let tries = 0; ((await store.get("one"))?.totalHits ?? 0) !== hits; tries++) assert.ok(tries < 2000);
        };
        assert.equal(await ask("?fail=1"), 500);
        await settled(0);
        assert.equal(await ask(), 200);
        assert.equal(await ask(), 200);
        for (let i = 0; i < 5; i++) {
          assert.equal(await ask(), 429);
          await settled(2);
        }
        await http.close();
      });

      test(`express-rate-limit, ${algorithm}: a limit that is a function`, async () => {
        const app = express();
        const store = expressRateLimitStore(limiter, {
          algorithm,
          timeout: 10_000,
          prefix: `express-function:${prefix}`,
        });
        app.use(rateLimit({ windowMs: 60_000, limit: () => LIMIT, keyGenerator: () => "one", store }));
        app.get("/", (_request, response) => void response.send("ok"));
        const http = await listen(createServer(app));
        assert.equal((await burst(http)).passed.length, LIMIT);
        await http.close();
      });

      test(`hono-rate-limiter, ${algorithm}`, async () => {
        const app = new Hono();
        const store = honoRateLimiterStore(limiter, { algorithm, timeout: 10_000, prefix: `hono:${prefix}` });
        const options = {
          windowMs: 60_000,
          limit: LIMIT,
          standardHeaders: "draft-7" as const,
          keyGenerator: () => "one",
        };
        app.use(rateLimiter({ ...options, store }));
        app.get("/", (context) => context.text("ok"));
        const http = await new Promise<App>((resolve) => {
          const listening = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) =>
            resolve({ url: `http://127.0.0.1:${port}/`, close: () => new Promise((done) => listening.close(done)) }),
          );
        });
        const { passed, denied } = await burst(http);
        await http.close();
        assert.equal(passed.length, LIMIT);
        const left = passed.map((headers) =>
          Number(parseDictionary(headers.get("ratelimit") ?? "").get("remaining")?.[0]),
        );
        assert.deepEqual(
          left.sort((a, b) => a - b),
          [0, 1, 2, 3, 4, 5, 6],
        );
        for (const headers of denied) assert.ok(integer(headers, "retry-after") >= 1);
        await store.resetKey("one");
        assert.equal(await store.get("one"), undefined);
      });

      test(`@fastify/rate-limit, ${algorithm}`, async () => {
        const app = fastify();
        await app.register(fastifyRateLimit, {
          max: 100,
          timeWindow: "1 minute",
          keyGenerator: () => "one",
          store: fastifyRateLimitStore(limiter, { algorithm, timeout: 10_000, prefix: `fastify:${prefix}` }),
        });
        app.get("/", { config: { rateLimit: { max: LIMIT } } }, () => "ok");
        app.get("/other", () => "ok");
        const url = `${await app.listen({ port: 0, host: "127.0.0.1" })}/`;
        const { passed, denied } = await burst({ url, close: () => app.close() });
        assert.equal(passed.length, LIMIT);
        const left = passed.map((headers) => integer(headers, "x-ratelimit-remaining"));
        assert.deepEqual(
          left.sort((a, b) => a - b),
          [0, 1, 2, 3, 4, 5, 6],
        );
        for (const headers of denied) {
          const wait = integer(headers, "retry-after");
          assert.ok(wait >= 1 && wait <= 60, `${wait}`);
        }
        const other = await fetch(`${url}other`);
        assert.equal(integer(other.headers, "x-ratelimit-remaining"), 99, "a route of its own counts by itself");
        await app.close();
      });

      test(`rate-limiter-flexible, ${algorithm}`, async () => {
        const flexible = new RateLimiterRl({
          limiter,
          timeout: 10_000,
          algorithm,
          points: LIMIT,
          duration: 60,
          keyPrefix: `flexible-${algorithm}`,
        });
        const http = await listen(
          createServer((_request, response) => {
            flexible.consume("one").then(
              () => response.end("ok"),
              ({ msBeforeNext }) => response.writeHead(429, { "Retry-After": Math.ceil(msBeforeNext / 1000) }).end(),
            );
          }),
        );
        const { passed, denied } = await burst(http);
        await http.close();
        assert.equal(passed.length, LIMIT);
        for (const headers of denied) assert.ok(integer(headers, "retry-after") >= 1);
        await flexible.reward("one", 100 - LIMIT + 1);
        // The counter has counted a hundred, the window only those that it let in.
        assert.equal((await flexible.get("one"))?.remainingPoints, algorithm === "fixed" ? 1 : undefined);
        await flexible.delete("one");
        assert.equal(await flexible.get("one"), null);
        await flexible.penalty("one", 3);
        assert.equal((await flexible.get("one"))?.consumedPoints, 3);
        if (algorithm === "fixed") {
          await flexible.block("one", 300);
          const blocked = await flexible.consume("one").catch((denial) => denial);
          assert.ok(blocked.msBeforeNext > 250_000);
        } else {
          await assert.rejects(flexible.block("one", 300), /need the algorithm "fixed"/);
        }
      });
    }

    test("node:http with headers of our own", async () => {
      const rule = sliding(`${LIMIT}/minute`, "1000/hour");
      const http = await listen(
        createServer(async (_request, response) => {
          const result = await limiter.hit("plain", rule);
          if (result.allowed) response.writeHead(200, result.headers()).end("ok");
          else {
            const headers = { ...result.headers(), "Content-Type": "application/problem+json" };
            response.writeHead(429, headers).end(JSON.stringify(result.problem()));
          }
        }),
      );
      const { passed, denied } = await burst(http);
      assert.equal(passed.length, LIMIT);
      for (const headers of [...passed, ...denied]) {
        const policies = parseList(headers.get("ratelimit-policy") ?? "");
        assert.deepEqual(
          policies.map(([name, parameters]) => [name, parameters.get("q"), parameters.get("w")]),
          [
            ["60s", LIMIT, 60],
            ["3600s", 1000, 3600],
          ],
        );
        const wait = Number(parseList(headers.get("ratelimit") ?? "")[0]?.[1].get("t"));
        assert.ok(wait >= 1 && wait <= 60);
      }
      for (const headers of denied) {
        assert.ok(
          integer(headers, "retry-after") >= Number(parseList(headers.get("ratelimit") ?? "")[0]?.[1].get("t")),
        );
      }
      const problem = (await (await fetch(http.url)).json()) as Record<string, unknown>;
      assert.deepEqual(problem["violated-policies"], ["60s"]);
      await http.close();
    });
  });
}

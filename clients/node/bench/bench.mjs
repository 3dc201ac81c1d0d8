/**
 * Requests a second, latency and CPU time through each store, beside the store that its users have today.
 *
 * All stores run in one process against one server, in turn, several rounds; figures are medians. A ratio is that to the
 * store that its users have today, taken within each round; the smallest and the largest are shown. CPU times
 * are those of one request, in this process and in the server.
 *
 * Called by `make bench-clients`. Prints a table in Markdown. `--seconds N` is the length of a round, `--rounds N` how
 * many there are.
 */

import { parseArgs } from "node:util";
import RedisStoreOfFastify from "@fastify/rate-limit/store/RedisStore.js";
import { Redis } from "ioredis";
import { RedisStore as RateLimitRedis } from "rate-limit-redis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { createClient } from "redis";
import { Limiter } from "redis-rl";
import { expressRateLimitStore } from "redis-rl/express-rate-limit";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { RateLimiterRl } from "redis-rl/rate-limiter-flexible";
import support from "../build/test/support/server.js";

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "0.25" },
    rounds: { type: "string", default: "7" },
  },
});
const ROUND_MS = Number(values.seconds) * 1000;
const ROUNDS = Number(values.rounds);
const CONCURRENCY = 64;
const KEYS = 1000;
/** Of the requests of a round some are denied: both paths are measured. */
const LIMIT = 50;
const WINDOW_MS = 60_000;

/** Each adapter: a row's names, and a function that makes what is called once a request. */
function adapters(nodeRedis, ioredis) {
  const settings = { windowMs: WINDOW_MS, limit: LIMIT };
  const ours = (client, mode) => new Limiter(client, { mode, prefix: `${mode}:`, timeout: 10_000 });
  const hits = (store) => {
    store.init(settings);
    return (key) => store.increment(key);
  };
  const flexible = (limiter) => (key) => limiter.consume(key).catch(refused);
  const fastify = (store) => (key) =>
    new Promise((resolve, reject) =>
      store.incr(key, (error, result) => (error ? reject(error) : resolve(result)), WINDOW_MS, LIMIT),
    );
  const forUs = (framework, client, make, ways = [["module", "sliding"]]) =>
    ways.map(([mode, algorithm]) => ({
      framework,
      store: `redis-rl, ${algorithm}`,
      mode,
      request: make(ours(client, mode), { algorithm, prefix: `${framework}:${algorithm}:`, timeout: 10_000 }),
    }));
  // What the other ways cost does not depend on the framework: once is enough.
  const allWays = [
    ["module", "sliding"],
    ["module", "fixed"],
    ["functions", "sliding"],
    ["script", "sliding"],
  ];
  const points = { points: LIMIT, duration: WINDOW_MS / 1000 };
  return [
    {
      framework: "express-rate-limit",
      store: "rate-limit-redis",
      mode: "script",
      request: hits(new RateLimitRedis({ sendCommand: (...args) => nodeRedis.sendCommand(args) })),
    },
    ...forUs(
      "express-rate-limit",
      nodeRedis,
      (limiter, options) => hits(expressRateLimitStore(limiter, options)),
      allWays,
    ),
    {
      framework: "@fastify/rate-limit",
      store: "its redis store",
      mode: "script",
      request: fastify(new RedisStoreOfFastify(false, false, ioredis)),
    },
    ...forUs("@fastify/rate-limit", ioredis, (limiter, options) =>
      fastify(new (fastifyRateLimitStore(limiter, options))({})),
    ),
    {
      framework: "rate-limiter-flexible",
      store: "RateLimiterRedis",
      mode: "script",
      request: flexible(new RateLimiterRedis({ ...points, storeClient: ioredis })),
    },
    ...forUs("rate-limiter-flexible", ioredis, (limiter, { algorithm, prefix, timeout }) =>
      flexible(new RateLimiterRl({ ...points, limiter, algorithm, keyPrefix: prefix, timeout })),
    ),
  ];
}

/** A denial of rate-limiter-flexible is a rejection that is no error. */
function refused(reason) {
  if (reason instanceof Error) throw reason;
}

async function cpuMicros(server) {
  const parts = await Promise.all(["used_cpu_user", "used_cpu_sys"].map((field) => server.info("cpu", field)));
  return parts.reduce((sum, part) => sum + Number(part) * 1e6, 0);
}

/** One client that is denied, again and again. */
function floods(nodeRedis) {
  const settings = { windowMs: WINDOW_MS * 60, limit: 1 };
  const ours = (denyCache) =>
    expressRateLimitStore(new Limiter(nodeRedis, { timeout: 10_000 }), { denyCache, timeout: 10_000 });
  return [
    ["rate-limit-redis", new RateLimitRedis({ sendCommand: (...args) => nodeRedis.sendCommand(args) })],
    ["redis-rl, sliding, denyCache: false", ours(false)],
    ["redis-rl, sliding", ours(true)],
  ].map(([store, made]) => {
    made.init(settings);
    return { framework: "express-rate-limit", store, mode: "", request: () => made.increment("one"), rounds: [] };
  });
}

/** Commands that the server has run, those of scripts left out. */
async function callsOf(server) {
  const stats = String(await server.run("INFO", "commandstats"));
  const calls = /^cmdstat_(?:rl\.sliding|evalsha):calls=(\d+)/gm;
  return [...stats.matchAll(calls)].reduce((sum, [, count]) => sum + Number(count), 0);
}

async function round(server, request) {
  await server.run("FLUSHALL");
  const latencies = [];
  let next = 0;
  const worker = async (until) => {
    while (performance.now() < until) {
      const start = performance.now();
      await request(`client-${next++ % KEYS}`);
      latencies.push(performance.now() - start);
    }
  };
  const crowd = (ms) => Promise.all(Array.from({ length: CONCURRENCY }, () => worker(performance.now() + ms)));
  await crowd(50);
  latencies.length = 0;
  const calls = await callsOf(server);
  const [cpu, own, start] = [await cpuMicros(server), process.cpuUsage(), performance.now()];
  await crowd(ROUND_MS);
  const [elapsed, mine] = [performance.now() - start, process.cpuUsage(own)];
  const spent = (await cpuMicros(server)) - cpu;
  const callsPerSecond = (((await callsOf(server)) - calls) / elapsed) * 1000;
  latencies.sort((a, b) => a - b);
  return {
    perSecond: (latencies.length / elapsed) * 1000,
    p99: latencies[Math.floor(latencies.length * 0.99)],
    clientMicros: (mine.user + mine.system) / latencies.length,
    serverMicros: spent / latencies.length,
    callsPerSecond,
  };
}

function median(figures) {
  return figures.toSorted((a, b) => a - b)[Math.floor(figures.length / 2)];
}

/** The figures of a row: medians, and ratios to what users of the framework have today, which comes first. */
function summary(row, rows) {
  const today = rows.find(({ framework }) => framework === row.framework);
  const figures = { framework: row.framework, store: row.store, mode: row.mode };
  for (const name of Object.keys(row.rounds[0])) {
    figures[name] = median(row.rounds.map((round) => round[name]));
    if (row === today) continue;
    const ratios = row.rounds.map((round, i) => round[name] / today.rounds[i][name]).toSorted((a, b) => a - b);
    figures[`${name} ratio`] = { least: ratios[0], most: ratios.at(-1) };
  }
  return figures;
}

function shown(ratio) {
  if (!ratio) return "";
  if (ratio.least < 1 && ratio.most > 1) return "no difference";
  return `${ratio.least.toFixed(2)} to ${ratio.most.toFixed(2)}`;
}

const server = await support.Server.start({ mode: "module" });
const nodeRedis = createClient({ socket: { host: "127.0.0.1", port: server.port } });
await nodeRedis.connect();
const ioredis = new Redis(server.port, "127.0.0.1");
const rows = adapters(nodeRedis, ioredis).map((adapter) => ({ ...adapter, rounds: [] }));
const flood = floods(nodeRedis);
for (let i = 0; i < ROUNDS; i++) {
  for (const row of [...rows, ...flood]) row.rounds.push(await round(server, row.request));
}
const version = (await server.info("server", "valkey_version")) || (await server.info("server", "redis_version"));
const results = rows.map((row) => summary(row, rows));
const flooded = flood.map((row) => ({
  ...summary(row, flood),
  // Of a call a second, most turns see none.
  meanCallsPerSecond: row.rounds.reduce((sum, { callsPerSecond }) => sum + callsPerSecond, 0) / ROUNDS,
}));

console.log(
  `Node.js ${process.versions.node}, server ${version}, ${CONCURRENCY} requests at a time, ${KEYS} keys, ${ROUNDS} turns.\n`,
);
console.log(
  "| framework | store | sent as | requests/s | ÷ today's | p99 | client CPU | ÷ today's | server CPU | ÷ today's |",
);
console.log("|---|---|---|--:|--:|--:|--:|--:|--:|--:|");
for (const row of results) {
  const cells = [row.framework, row.store, row.mode, Math.round(row.perSecond).toLocaleString("en")];
  cells.push(shown(row["perSecond ratio"]), `${row.p99.toFixed(2)} ms`);
  cells.push(`${row.clientMicros.toFixed(1)} µs`, shown(row["clientMicros ratio"]));
  cells.push(`${row.serverMicros.toFixed(1)} µs`, shown(row["serverMicros ratio"]));
  console.log(`| ${cells.join(" | ")} |`);
}
console.log("\nOne client that is denied, through express-rate-limit:\n");
console.log("| store | requests/s | ÷ today's | client CPU | ÷ today's | calls/s at the server |");
console.log("|---|--:|--:|--:|--:|--:|");
for (const row of flooded) {
  const cells = [row.store, Math.round(row.perSecond).toLocaleString("en"), shown(row["perSecond ratio"])];
  cells.push(`${row.clientMicros.toFixed(1)} µs`, shown(row["clientMicros ratio"]));
  cells.push(Math.round(row.meanCallsPerSecond).toLocaleString("en"));
  console.log(`| ${cells.join(" | ")} |`);
}
nodeRedis.destroy();
ioredis.disconnect();
await server.stop();

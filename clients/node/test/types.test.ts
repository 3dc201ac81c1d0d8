/** What the types say to a user: what is impossible does not compile, and CommonJS does, in the settings that people have. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { root } from "./support/server.js";

const folder = join(root, "clients/node");

/** Compiles a file in an empty folder that has the package, its own checks of declarations included. Returns the errors. */
function compile(name: string, source: string, options: Record<string, unknown>, type?: "module"): string {
  const place = mkdtempSync(join(tmpdir(), "redis-rl-types-"));
  try {
    mkdirSync(join(place, "node_modules/@types"), { recursive: true });
    symlinkSync(folder, join(place, "node_modules/redis-rl"));
    mkdirSync(join(place, "node_modules/@fastify"));
    for (const needed of [
      "@types/node",
      "@types/express",
      "@fastify/rate-limit",
      "express",
      "express-rate-limit",
      "fastify",
      "fastify-rate-limit10",
      "hono",
      "hono-rate-limiter",
      "ioredis",
      "redis",
    ]) {
      symlinkSync(join(folder, "node_modules", needed), join(place, "node_modules", needed));
    }
    writeFileSync(join(place, "package.json"), JSON.stringify({ name: "app", ...(type && { type }) }));
    writeFileSync(join(place, name), source);
    const compilerOptions = { strict: true, noEmit: true, target: "es2022", types: ["node"], ...options };
    writeFileSync(join(place, "tsconfig.json"), JSON.stringify({ compilerOptions, files: [name] }));
    const tsc = join(folder, "node_modules/typescript/bin/tsc");
    execFileSync(process.execPath, [tsc, "-p", place, "--pretty", "false"], { encoding: "utf8" });
    return "";
  } catch (error) {
    return String((error as { stdout?: unknown }).stdout);
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
}

const APP = `
import { createClient, createCluster } from "redis";
import { Redis, Cluster } from "ioredis";
import { clientAddress, type Demand, Limiter, sliding, fixed, throttle, lease, UnavailableError } from "redis-rl";
import { expressRateLimitStore } from "redis-rl/express-rate-limit";
import { RateLimiterRl } from "redis-rl/rate-limiter-flexible";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import { honoRateLimiterStore } from "redis-rl/hono-rate-limiter";
import { rateLimit } from "express-rate-limit";
import { rateLimiter } from "hono-rate-limiter";
import { fastify } from "fastify";
import fastifyRateLimit from "@fastify/rate-limit";

export const limiters = [
  new Limiter(createClient()),
  new Limiter(createCluster({ rootNodes: [] })),
  new Limiter(new Redis({ lazyConnect: true })),
  new Limiter(new Cluster([], { lazyConnect: true }), { prefix: "app:", mode: "functions", whenUnavailable: "local" }),
];
export const limiter = limiters[0] as Limiter;
export const middleware = rateLimit({ limit: 3, windowMs: 1000, store: expressRateLimitStore(limiter) });
export const identify = clientAddress({ trustedProxies: ["10.0.0.0/8"] });
export const identified = rateLimit({ keyGenerator: (request) => identify(request) ?? "", store: expressRateLimitStore(limiter) });
export const hono = rateLimiter({ windowMs: 1000, limit: 3, keyGenerator: () => "k", store: honoRateLimiterStore(limiter) });
export const app = fastify();
app.register(fastifyRateLimit, { max: 3, timeWindow: 1000, store: fastifyRateLimitStore(limiter) });
export const computed = (rates: string[]) => [sliding(...rates), fixed(...rates), sliding("1/s", ...rates)];
export const others = [RateLimiterRl, fastifyRateLimitStore, honoRateLimiterStore, UnavailableError];
export async function main(list: Demand[]): Promise<void> {
  await limiter.all(list);
  await limiter.all([
    { key: "a", rule: sliding("5/minute"), cost: 0 },
    { key: "b", rule: throttle("5/minute"), cost: 2 },
    { key: "c", rule: lease(3, 60), holder: "me" },
    { key: "d", rule: lease(3, 60, { holder: "me" }) },
  ]);
  await limiter.peek("k", lease(3, 60), { holder: "me" });
  await limiter.hit("k", sliding("5/minute", [7, 3600]), { cost: 2, force: true });
  await limiter.hit("k", throttle("5/minute"), { cost: 2 });
  await limiter.hit("k", lease(3, 60), { holder: "me" });
  const result: number = await limiter.hold("k", lease(3, 60), async ({ signal }) => Number(signal.aborted));
  const { lost } = await limiter.hold("k", lease(3, 60), { timeout: 100 });
  await limiter.wait("k", fixed("5/minute", { anchored: true }), { timeout: result + Number(lost) });
}
`;

test("CommonJS and ES modules compile, with and without a bundler", () => {
  assert.equal(compile("app.ts", APP, { module: "nodenext" }), "", "CommonJS");
  assert.equal(compile("app.ts", APP, { module: "node20" }), "", "CommonJS, node20");
  assert.equal(compile("app.ts", APP, { module: "nodenext" }, "module"), "", "ES modules");
  assert.equal(compile("app.ts", APP, { module: "preserve", moduleResolution: "bundler" }), "", "a bundler");
  assert.equal(compile("app.ts", APP, { module: "commonjs", moduleResolution: "bundler" }), "", "module: commonjs");
});

test("the version before of @fastify/rate-limit compiles, too", () => {
  const app = `
import { Redis } from "ioredis";
import { fastify } from "fastify";
import { Limiter } from "redis-rl";
import { fastifyRateLimitStore } from "redis-rl/fastify-rate-limit";
import rateLimit from "fastify-rate-limit10";
fastify().register(rateLimit, { max: 3, timeWindow: 1000, store: fastifyRateLimitStore(new Limiter(new Redis())) });
`;
  assert.equal(compile("app.ts", app, { module: "nodenext" }, "module"), "");
});

test("what is impossible does not compile", () => {
  const lines = [
    'limiter.hit("k", throttle("5/minute"), { force: true });',
    'limiter.hit("k", lease(3, 60), { cost: 2 });',
    'limiter.hit("k", "5/minute");',
    'limiter.hit(undefined, sliding("5/minute"));',
    'limiter.refund("k", lease(3, 60));',
    'limiter.reserve("k", throttle("5/minute"), 5);',
    'limiter.reserve("k", lease(3, 60), 5);',
    'limiter.reserveAll([{ key: "k", rule: throttle("5/minute"), reserve: 5 }]);',
    "sliding();",
    "new Limiter(undefined);",
    'new Limiter(limiter.connection, { mode: "function" });',
    'new Limiter(limiter.connection, { whenUnavailable: "away" });',
    'throttle("5/minute", { force: true });',
    'limiter.wait("k", lease(3, 60), { cost: 2 });',
    'limiter.wait("k", sliding("5/s"), { holder: "me" });',
    'limiter.turn("k", fixed("5/s"), 1000);',
    'limiter.turn("k", lease(3, 60), 1000);',
    'limiter.all([{ key: "k", rule: throttle("5/minute"), force: true }]);',
    'limiter.all([{ key: "k", rule: lease(3, 60) }]);',
    'limiter.all([{ key: "k", rule: lease(3, 60), holder: "me", cost: 1 }]);',
    "limiter.all([]);",
    'limiter.peek("k", lease(3, 60), { cost: 1 });',
    'fixed("5/s", { anchord: true });',
    'sliding("5/s", { anchored: true });',
    "fixed();",
    'new Limiter(limiter.connection, "app:");',
    'new Limiter(limiter.connection, { prefx: "app:" });',
  ];
  const head =
    'import { type Limiter as L, Limiter, fixed, sliding, throttle, lease } from "redis-rl";\ndeclare const limiter: L;\n';
  // Whether the declarations are right in themselves the tests above say.
  const errors = compile("app.ts", head + lines.join("\n"), { module: "nodenext", skipLibCheck: true });
  for (const [i, line] of lines.entries()) assert.match(errors, new RegExp(`app\\.ts\\(${i + 3},`), line);
});

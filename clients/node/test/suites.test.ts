/** The peers' own tests, with our store in the place of theirs. Of the peers, @fastify/rate-limit publishes its tests. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { root, Server } from "./support/server.js";

const folder = join(root, "clients/node");
const suite = join(folder, "node_modules/@fastify/rate-limit/test/redis-rate-limit.test.js");

/** What differs, and why; the README has the same list. */
const DIFFERENT = [
  // exponentialBackoff is not supported.
  "With redis store and exponential backoff",
  "Route-specific exponential backoff with redis store",
  // The window of continueExceeding is a sliding one, which ends by what it has counted.
  "Redis with continueExceeding should not always return the timeWindow as ttl",
  // An unavailable server is a 503, and not a 500.
  "With { increment: false } it throws on redis error",
];

/** These quit their client and call at once. The store's own connection ends with the client's, a moment later. */
const A_MOMENT_LATER = ["Skip on redis error", "Throw on redis error"];

function run(algorithm: string, port: number): string[] {
  const hook = join(folder, "test/support/fastify-suite.cjs");
  const env: NodeJS.ProcessEnv = { ...process.env, SUITE_PORT: String(port), SUITE_ALGORITHM: algorithm };
  delete env.NODE_TEST_CONTEXT;
  const { stdout } = spawnSync(
    process.execPath,
    ["--require", hook, "--test-reporter=tap", "--test-force-exit", suite],
    {
      cwd: folder,
      env,
      encoding: "utf8",
      timeout: 80_000,
    },
  );
  assert.match(stdout, /# tests 16\b/, stdout.slice(-2000));
  return [...stdout.matchAll(/^ {4}not ok \d+ - (.*)$/gm)].map(([, name]) => name as string);
}

for (const algorithm of ["sliding", "fixed"]) {
  test(`@fastify/rate-limit, its tests for Redis, ${algorithm}`, async (t) => {
    const server = await Server.start({ mode: "module" });
    t.after(() => server.stop());
    // Some count on windows of a second, and on a machine that is not slow.
    let failed: string[] = [];
    for (let tries = 0; tries < 3; tries++) {
      failed = run(algorithm, server.port).filter((name) => !A_MOMENT_LATER.includes(name));
      if (failed.length <= DIFFERENT.length) break;
    }
    assert.deepEqual(failed.sort(), [...DIFFERENT].sort());
  });
}

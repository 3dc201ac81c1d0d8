/** The headers, read by a parser of structured fields that is not ours. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fixed, lease, type Result, sliding } from "redis-rl";
import { parseList } from "structured-headers";
import { fakeResult } from "./support/fake.js";

function parsed(result: Result, field: string) {
  return parseList(result.headers()[field] ?? "").map(([name, parameters]) => ({
    name,
    ...Object.fromEntries(parameters),
  }));
}

test("one window", async () => {
  const result = await fakeResult(sliding("100/minute"), { limit: 100, used: 60, "next-after-ms": 30_001 });
  assert.deepEqual(parsed(result, "RateLimit-Policy"), [{ name: "default", q: 100, w: 60 }]);
  assert.deepEqual(parsed(result, "RateLimit"), [{ name: "default", r: 40, t: 31 }]);
  assert.equal("Retry-After" in result.headers(), false);
});

test("several windows have a policy each, and the one that denied is in the problem", async () => {
  const result = await fakeResult(
    sliding("10/second", "1000/hour", { name: 'a"b\\c' }),
    { limit: 10, used: 10, "next-after-ms": 900, allowed: 0, "retry-after-ms": 900, "window-ms": 1000 },
    { limit: 1000, used: 11, "next-after-ms": 3_599_001, "window-ms": 3_600_000 },
  );
  assert.deepEqual(parsed(result, "RateLimit-Policy"), [
    { name: 'a"b\\c-second', q: 10, w: 1 },
    { name: 'a"b\\c-hour', q: 1000, w: 3600 },
  ]);
  assert.deepEqual(parsed(result, "RateLimit"), [
    { name: 'a"b\\c-second', r: 0, t: 1 },
    { name: 'a"b\\c-hour', r: 989, t: 3600 },
  ]);
  assert.equal(result.headers()["Retry-After"], "1");
  assert.deepEqual(result.problem(), {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": ['a"b\\c-second'],
  });
});

test("a request that never fits has no Retry-After, and a quota that never grows no t", async () => {
  const figures = { allowed: 0, limit: 0, used: 0, "retry-after-ms": -1, "next-after-ms": -1 };
  const result = await fakeResult(sliding("0/minute"), figures);
  assert.equal(result.retryAfter, undefined);
  assert.equal("Retry-After" in result.headers(), false);
  assert.deepEqual(parsed(result, "RateLimit"), [{ name: "default", r: 0 }]);
});

test("w is for whole seconds, integers have 15 digits, and a unit is named", async () => {
  const short = await fakeResult(fixed("5/250ms"), { limit: 5, used: 1, "window-ms": 250 });
  assert.deepEqual(parsed(short, "RateLimit-Policy"), [{ name: "default", q: 5 }]);
  const great = await fakeResult(sliding("9007199254740991/minute", { unit: "content-bytes" }), {
    limit: 9007199254740991,
    used: 1,
  });
  assert.deepEqual(parsed(great, "RateLimit-Policy"), [
    { name: "default", q: 999_999_999_999_999, qu: "content-bytes", w: 60 },
  ]);
  const leases = await fakeResult(lease(16, 120, { name: "jobs" }), { limit: 16, used: 3, "window-ms": 120_000 });
  assert.deepEqual(parsed(leases, "RateLimit-Policy"), [{ name: "jobs", q: 16, qu: "concurrent-requests" }]);
});

test("the old headers on request, of the window that binds", async () => {
  const result = await fakeResult(sliding("100/minute"), { limit: 100, used: 60, "reset-after-ms": 59_001 });
  const headers = result.headers({ legacy: true });
  assert.deepEqual(
    [headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"], headers["X-RateLimit-Reset"]],
    ["100", "40", "60"],
  );
});

/** The headers, read by a parser of structured fields that is not ours. What is in them, the shared cases say. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { sliding } from "redis-rl";
import { parseList } from "structured-headers";
import { fakeResult } from "./support/fake.js";

test("the fields are lists of strings with parameters, whatever the name", async () => {
  const result = await fakeResult(
    sliding("10/second", "1000/hour", { name: 'a"b\\c', unit: "content-bytes" }),
    { limit: 10, used: 10, "next-after-ms": 900, allowed: 0, "retry-after-ms": 900, "window-ms": 1000 },
    { limit: 1000, used: 11, "next-after-ms": 3_599_001, "window-ms": 3_600_000 },
  );
  const parsed = (field: string) =>
    parseList(result.headers()[field] ?? "").map(([name, parameters]) => ({ name, ...Object.fromEntries(parameters) }));
  assert.deepEqual(parsed("RateLimit-Policy"), [
    { name: 'a"b\\c-1s', q: 10, qu: "content-bytes", w: 1 },
    { name: 'a"b\\c-3600s', q: 1000, qu: "content-bytes", w: 3600 },
  ]);
  assert.deepEqual(parsed("RateLimit"), [
    { name: 'a"b\\c-1s', r: 0, t: 1 },
    { name: 'a"b\\c-3600s', r: 989 },
  ]);
  assert.equal(result.headers()["Retry-After"], "1");
});

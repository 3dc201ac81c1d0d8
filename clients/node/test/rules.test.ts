/** Rules as values, without a server. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fixed, lease, sliding, throttle } from "redis-rl";

test("a quota is read in every form", () => {
  const forms: [string, number, number][] = [
    ["100/minute", 100, 60_000],
    ["5/10s", 5, 10_000],
    ["5 / 2 hours", 5, 7_200_000],
    ["1/250ms", 1, 250],
    ["7/1.5s", 7, 1500],
    ["1000/day", 1000, 86_400_000],
    ["0/Week", 0, 604_800_000],
    ["9007199254740991/second", 9007199254740991, 1000],
  ];
  for (const [text, limit, windowMs] of forms) assert.deepEqual(sliding(text).windows, [{ limit, windowMs }], text);
  assert.deepEqual(sliding([3, 0.25]).windows, [{ limit: 3, windowMs: 250 }]);
});

test("a quota that cannot be read is refused, not guessed at", () => {
  for (const text of [
    "",
    "100",
    "100/",
    "/minute",
    "-1/minute",
    "1.5/minute",
    "10/fortnight",
    "1/0s",
    "1/0.0001s",
    "1/toString",
  ]) {
    assert.throws(() => sliding(text), RangeError, text);
  }
  assert.throws(() => sliding([1, 0.0001]), RangeError);
  assert.throws(() => sliding([1, 2_147_483_648]), RangeError);
  assert.throws(() => sliding([2 ** 53, 1]), RangeError);
  assert.throws(() => sliding("1/s", { cost: -1 }), RangeError);
  assert.throws(() => sliding("1/s", { name: "ä" }), RangeError);
  assert.throws(() => lease(-1, 1), RangeError);
});

test("windows are sorted, and options may follow them", () => {
  const rule = sliding("1000/hour", "10/second", { cost: 3, force: true, name: "api" });
  assert.deepEqual(
    rule.windows.map(({ windowMs }) => windowMs),
    [1000, 3_600_000],
  );
  assert.equal(rule.cost, 3);
  assert.equal(rule.force, true);
  assert.equal(fixed("5/minute").anchored, false);
  assert.equal(fixed("5/minute", { anchored: true }).anchored, true);
});

test("a throttle keeps its rate where the period is no whole number of seconds", () => {
  const plain = throttle("30/minute", { burst: 15 });
  assert.deepEqual([plain.burst, plain.count, plain.period], [15, 30, 60]);
  const half = throttle("5/500ms");
  assert.deepEqual([half.burst, half.count, half.period], [4, 10, 1]);
});

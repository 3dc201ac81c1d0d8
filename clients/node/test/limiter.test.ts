/** Every command through the limiter, on servers that take them as module, functions and script, under a stopped clock. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { calendar, DeniedError, fixed, Limiter, lease, type Result, sliding, throttle } from "redis-rl";
import { clients, type OpenClient } from "./support/clients.js";
import { modes, Server } from "./support/server.js";

/** Twenty seconds into a minute. */
const T = 1_700_000_000_000;

function figures({ allowed, limit, used, remaining, retryAfterMs, nextAfterMs, resetAfterMs, windowMs, atMs }: Result) {
  return { allowed, limit, used, remaining, retryAfterMs, nextAfterMs, resetAfterMs, windowMs, atMs: atMs - T };
}

for (const mode of modes) {
  describe(mode, () => {
    let server: Server;
    let open: OpenClient;
    let limiter: Limiter;

    before(async () => {
      server = await Server.start({ mode, frozenAt: T });
      open = (await clients[0]?.open(server.port)) as OpenClient;
      limiter = new Limiter(open.client, { prefix: "app:", timeout: 10_000 });
    });
    after(async () => {
      open.close();
      await server.stop();
    });

    test("sliding: exact to the millisecond", async () => {
      const rule = sliding("2/minute");
      const at = async (ms: number) => {
        server.setTime(T + ms);
        return figures(await limiter.hit("s", rule));
      };
      const common = { limit: 2, windowMs: 60_000 };
      assert.deepEqual(await at(0), {
        ...common,
        allowed: true,
        used: 1,
        remaining: 1,
        retryAfterMs: 0,
        nextAfterMs: 60_000,
        resetAfterMs: 60_000,
        atMs: 0,
      });
      assert.deepEqual(await at(10_000), {
        ...common,
        allowed: true,
        used: 2,
        remaining: 0,
        retryAfterMs: 0,
        nextAfterMs: 50_000,
        resetAfterMs: 60_000,
        atMs: 10_000,
      });
      assert.deepEqual(await at(20_000), {
        ...common,
        allowed: false,
        used: 2,
        remaining: 0,
        retryAfterMs: 40_000,
        nextAfterMs: 40_000,
        resetAfterMs: 50_000,
        atMs: 20_000,
      });
      assert.deepEqual(await at(59_999), {
        ...common,
        allowed: false,
        used: 2,
        remaining: 0,
        retryAfterMs: 1,
        nextAfterMs: 1,
        resetAfterMs: 10_001,
        atMs: 59_999,
      });
      assert.equal((await at(60_000)).allowed, true);
      server.setTime(T);
      assert.equal(limiter.mode, mode);
      assert.equal(await server.run("EXISTS", "app:s"), 1, "the key lies behind the prefix");
    });

    test("seconds are rounded up", async () => {
      server.setTime(T);
      const rule = sliding("1/minute");
      await limiter.hit("seconds", rule);
      server.setTime(T + 1);
      const { retryAfter, nextAfter, resetAfter } = await limiter.hit("seconds", rule);
      assert.deepEqual([retryAfter, nextAfter, resetAfter], [60, 60, 60]);
      server.setTime(T + 59_999);
      assert.equal((await limiter.hit("seconds", rule)).retryAfter, 1);
    });

    test("several windows: all or nothing, and the one that binds", async () => {
      const rule = sliding("3/minute", "2/second");
      const at = async (ms: number) => {
        server.setTime(T + ms);
        return limiter.hit("several", rule);
      };
      await at(0);
      assert.equal((await at(0)).allowed, true);
      const bySecond = await at(0);
      assert.deepEqual([bySecond.allowed, bySecond.windowMs, bySecond.retryAfterMs], [false, 1000, 1000]);
      assert.deepEqual(
        bySecond.each.map(({ allowed, used }) => [allowed, used]),
        [
          [false, 2],
          [true, 2],
        ],
      );
      const full = await at(1000);
      assert.deepEqual([full.allowed, full.windowMs, full.remaining], [true, 60_000, 0]);
      const byMinute = await at(2000);
      assert.deepEqual([byMinute.allowed, byMinute.windowMs, byMinute.retryAfterMs], [false, 60_000, 58_000]);
      assert.deepEqual(
        byMinute.each.map(({ allowed }) => allowed),
        [true, false],
      );
      assert.equal(byMinute.headers()["Retry-After"], "58");
    });

    test("fixed: by the clock, and anchored at the first request", async () => {
      server.setTime(T);
      const byClock = await limiter.hit("f", fixed("2/minute"));
      assert.deepEqual([byClock.used, byClock.resetAfterMs], [1, 40_000]);
      const anchored = fixed("2/minute", { anchored: true });
      assert.equal((await limiter.hit("a", anchored)).resetAfterMs, 60_000);
      server.setTime(T + 30_000);
      assert.equal((await limiter.hit("a", anchored)).resetAfterMs, 30_000);
      const denied = await limiter.hit("a", anchored);
      assert.deepEqual([denied.allowed, denied.remaining, denied.retryAfterMs], [false, 0, 30_000]);
      assert.equal(await server.run("EXISTS", "app:a:60s"), 1);
      server.setTime(T + 60_000);
      assert.equal((await limiter.hit("a", anchored)).allowed, true);
    });

    test("throttle", async () => {
      server.setTime(T);
      const rule = throttle("30/minute", { burst: 2 });
      const first = await limiter.hit("t", rule);
      assert.deepEqual([first.limit, first.used, first.remaining, first.nextAfterMs], [3, 1, 2, 2000]);
      assert.equal((await limiter.hit("t", rule, { cost: 2 })).allowed, true);
      const denied = await limiter.hit("t", rule);
      assert.deepEqual([denied.allowed, denied.retryAfter, denied.resetAfter], [false, 2, 6]);
      assert.equal((await limiter.hit("t", rule, { cost: 4 })).retryAfter, undefined, "more than the burst never fits");
    });

    test("cost and force", async () => {
      server.setTime(T);
      const rule = sliding("100/minute", { cost: 60 });
      assert.equal((await limiter.hit("c", rule)).remaining, 40);
      const denied = await limiter.hit("c", rule);
      assert.deepEqual([denied.allowed, denied.used], [false, 60]);
      const forced = await limiter.hit("c", rule, { force: true });
      assert.deepEqual([forced.allowed, forced.used, forced.remaining], [false, 120, 0]);
      assert.equal((await limiter.hit("c2", rule, { cost: 101 })).retryAfter, undefined);
    });

    test("peek changes nothing", async () => {
      server.setTime(T);
      const rule = sliding("2/minute");
      await limiter.hit("p", rule);
      const would = await limiter.peek("p", rule);
      assert.deepEqual([would.allowed, would.used], [true, 2]);
      const state = await limiter.peek("p", rule, { cost: 0 });
      assert.deepEqual([state.allowed, state.used, state.remaining], [true, 1, 1]);
      const several = await limiter.peek("p", sliding("2/minute", "5/hour"), { cost: 0 });
      assert.deepEqual(
        several.each.map(({ used }) => used),
        [1, 1],
      );
      const other = throttle("1/minute");
      assert.equal((await limiter.peek("p:t", other)).allowed, true);
      assert.equal((await limiter.peek("p:t", other)).allowed, true);
      assert.equal((await limiter.peek("p:l", lease(1, 60), { holder: "h" })).allowed, true);
    });

    test("refund and reset", async () => {
      server.setTime(T);
      for (const rule of [sliding("10/minute"), fixed("10/minute"), fixed("10/minute", { anchored: true })]) {
        const key = `r:${rule.kind}:${"anchored" in rule && rule.anchored}`;
        const { atMs } = await limiter.hit(key, rule, { cost: 5 });
        const back = await limiter.refund(key, rule, { cost: 3 });
        assert.deepEqual([back.refunded, back.used], [3, 2], key);
        assert.equal(
          (await limiter.refund(key, rule, { cost: 9, atMs: atMs - 600_000 })).refunded,
          0,
          "another window",
        );
        assert.equal((await limiter.refund(key, rule, { cost: 9, atMs })).refunded, 2);
        await limiter.hit(key, rule);
        assert.equal(await limiter.reset(key, rule), 1);
        assert.equal((await limiter.peek(key, rule, { cost: 0 })).used, 0);
      }
      const rule = throttle("10/minute");
      await limiter.hit("r:t", rule, { cost: 5 });
      assert.equal((await limiter.refund("r:t", rule, { cost: 2 })).used, 3);
      assert.equal(await limiter.reset("r:t"), 1);
      assert.equal(await limiter.reset("r:t"), 0);
    });

    test("acquire, renew, release", async () => {
      server.setTime(T);
      const rule = lease(2, 60);
      assert.equal((await limiter.acquire("l", rule, { holder: "a" })).used, 1);
      server.setTime(T + 10_000);
      assert.equal((await limiter.acquire("l", rule, { holder: "b" })).allowed, true);
      const denied = await limiter.acquire("l", rule, { holder: "c" });
      assert.deepEqual([denied.allowed, denied.used, denied.retryAfter], [false, 2, 50]);
      assert.equal((await limiter.acquire("l", rule, { holder: "a" })).allowed, true, "a holder is renewed");
      assert.equal((await limiter.acquire("l", rule, { holder: "c" })).retryAfter, 60);
      assert.equal(await limiter.release("l", "a", "b", "nobody"), 2);
      assert.equal(await limiter.release("l", "a"), 0);
    });

    test("all: one decision, all or nothing", async () => {
      server.setTime(T);
      const requests = sliding("5/minute", { name: "requests" });
      const tokens = sliding("200/minute", { name: "tokens" });
      const busy = lease(2, 120, { name: "busy" });
      const ask = (cost: number, holder: string) =>
        limiter.all([
          { key: "{org7}:rpm", rule: requests },
          { key: "{org7}:tpm", rule: tokens, cost },
          { key: "{org7}:busy", rule: busy, holder },
        ]);
      const first = await ask(180, "one");
      assert.deepEqual([first.allowed, first.index, first.remaining, first.retryAfter], [true, 1, 20, 0]);
      assert.deepEqual(
        first.each.map(({ used }) => used),
        [1, 180, 1],
      );
      server.setTime(T + 15_000);
      const second = await ask(21, "two");
      assert.deepEqual([second.allowed, second.index, second.retryAfter], [false, 1, 45]);
      assert.deepEqual(second.problem()?.["violated-policies"], ["tokens"]);
      assert.deepEqual(
        second.each.map(({ used }) => used),
        [1, 180, 1],
        "nothing was taken",
      );
      assert.equal((await ask(201, "two")).retryAfter, undefined);
      assert.equal(second.headers().RateLimit, '"requests";r=4;t=45, "tokens";r=20;t=45, "busy";r=1');
    });

    test("a calendar: counted in its period, and in the one after where that has ended by the server's clock", async (t) => {
      const rule = calendar("3/month", { zone: "Europe/Berlin" });
      const [now, end] = [Date.UTC(2023, 10, 20), Date.UTC(2023, 10, 30, 23)];
      t.mock.method(Date, "now", () => now);
      server.setTime(now);
      const first = await limiter.hit("calendar", rule);
      assert.deepEqual([first.allowed, first.windowMs, first.resetAfterMs], [true, 0, end - now]);
      assert.equal(first.headers()["RateLimit-Policy"], '"month";q=3');
      for (let i = 0; i < 2; i++) await limiter.hit("calendar", rule);
      assert.equal((await limiter.hit("calendar", rule)).retryAfterMs, end - now);
      assert.equal((await limiter.refund("calendar", rule)).refunded, 1);
      server.setTime(end);
      const next = await limiter.hit("calendar", rule);
      assert.deepEqual([next.used, next.resetAfterMs], [1, Date.UTC(2023, 11, 31, 23) - end]);
      const both = await limiter.all([
        { key: "{c}:1", rule: sliding("5/s") },
        { key: "{c}:2", rule },
      ]);
      assert.deepEqual([both.allowed, both.each[1]?.resetAfterMs], [true, Date.UTC(2023, 11, 31, 23) - end]);
      assert.equal((await limiter.peek("calendar", rule, { cost: 0 })).used, 1);
      server.setTime(T);
    });

    test("a token budget: reserve and settle", async () => {
      server.setTime(T);
      for (const rule of [
        sliding("200/minute"),
        fixed("200/minute"),
        fixed("200/minute", { anchored: true }),
        calendar("200/day", { zone: "Asia/Kolkata" }),
      ]) {
        const key = `b:${rule.kind}:${"anchored" in rule && rule.anchored}`;
        const used = async () => (await limiter.peek(key, rule, { cost: 0 })).used;
        const first = await limiter.reserve(key, rule, 100);
        assert.equal(await used(), 100);
        assert.equal(await first.settle(40), true);
        assert.equal(await used(), 40);
        assert.equal(await first.settle(40), true);
        assert.equal(await used(), 40, "settled again, it changes nothing");
        await assert.rejects(first.settle(41), /settled already, with another/);
        const twice = await limiter.reserve(key, rule, 10);
        const [one, other] = await Promise.allSettled([twice.settle(0), twice.settle(1)]);
        assert.deepEqual([one.status, other.status], ["fulfilled", "rejected"], "at the same time, with two figures");
        assert.deepEqual([await twice.settle(0), await used()], [true, 40]);
        const second = await limiter.reserve(key, rule, 150);
        await second.settle(300);
        assert.equal(await used(), 340, "what was missing is charged");
        const denied = await limiter.reserve(key, rule, 2).catch((error) => error);
        assert.ok(denied instanceof DeniedError);
        assert.equal(await used(), 340);
      }
    });

    test("work with a reservation: settled, charged as reserved, or cancelled where it fails", async () => {
      server.setTime(T);
      const rule = sliding("1000/minute");
      const used = async () => (await limiter.peek("work", rule, { cost: 0 })).used;
      const answer = await limiter.reserve("work", rule, 100, async (reservation) => {
        assert.equal(await used(), 100);
        await reservation.settle(30);
        return "an answer";
      });
      assert.deepEqual([answer, await used()], ["an answer", 30]);
      await limiter.reserve("work", rule, 100, () => {});
      assert.equal(await used(), 130, "charged as reserved");
      const failing = limiter.reserve("work", rule, 100, () => {
        throw new Error("the model fails");
      });
      await assert.rejects(failing, /the model fails/);
      assert.equal(await used(), 130, "given back");
      const late = limiter.reserve("work", rule, 100, async (reservation) => {
        await reservation.settle(60);
        throw new Error("after it was settled");
      });
      await assert.rejects(late, /after it was settled/);
      assert.equal(await used(), 190);
    });

    test("a reservation that nobody settles ends by itself", async () => {
      server.setTime(T);
      const rule = sliding("100/hour");
      const lapsed = await limiter.reserve("lapses", rule, 100, { lease: 10 });
      server.setTime(T + 9_999);
      await assert.rejects(limiter.reserve("lapses", rule, 1, { lease: 10 }), DeniedError);
      server.setTime(T + 10_000);
      const next = await limiter.reserve("lapses", rule, 100, { lease: 10 });
      await next.settle(20);
      assert.equal(await lapsed.settle(50), true, "what has ended is counted now");
      assert.equal((await limiter.peek("lapses", rule, { cost: 0 })).used, 70);
    });

    test("a reservation of several keys: settled with one number, or with one each", async () => {
      server.setTime(T);
      const demands = [
        { key: "{r}:rpm", rule: sliding("10/minute") },
        { key: "{r}:tpm", rule: sliding("1000/minute"), reserve: 400 },
        { key: "{r}:month", rule: calendar("5000/month"), reserve: 400 },
      ];
      const used = async () =>
        Promise.all(demands.map(async ({ key, rule }) => (await limiter.peek(key, rule, { cost: 0 })).used));
      const first = await limiter.reserveAll(demands);
      assert.deepEqual(await used(), [1, 400, 400]);
      assert.equal(await first.settle(150), true);
      assert.deepEqual(await used(), [1, 150, 150]);
      await limiter.reserveAll(demands, async (reservation) => {
        await reservation.settle({ "{r}:tpm": 250, "{r}:month": 1 });
      });
      assert.deepEqual(await used(), [2, 400, 151]);
      await assert.rejects((await limiter.reserveAll(demands)).settle({ "{r}:tpm": 1 }), /actual must be/);
      const denied = await limiter
        .reserveAll([{ key: "{r}:tpm", rule: sliding("1000/minute"), reserve: 700 }])
        .catch((e) => e);
      assert.ok(denied instanceof DeniedError);
      await assert.rejects(limiter.reserveAll([{ key: "k", rule: sliding("5/s") }]), /nothing is reserved/);
    });

    test("a reset gives back what is reserved, and the settlement does not once more", async () => {
      server.setTime(T);
      const rule = fixed("1000/day");
      const reservation = await limiter.reserve("reserved and reset", rule, 60);
      await limiter.reset("reserved and reset", rule);
      await limiter.hit("reserved and reset", rule, { cost: 5 });
      await reservation.settle(3);
      assert.equal((await limiter.peek("reserved and reset", rule, { cost: 0 })).used, 8);
    });

    if (mode === "module") {
      test("a budget takes any cost, also after a request of one unit", async () => {
        server.setTime(T);
        const rule = sliding("200000/minute");
        await (await limiter.reserve("tokens", rule, 1)).settle(1800);
        assert.equal((await limiter.hit("tokens", rule, { cost: 100_000 })).used, 101_800);
      });
    }

    test("hold releases, also when the work fails", async () => {
      server.setTime(T);
      const rule = lease(1, 60);
      await limiter.hold("w", rule, async () => {
        const denied = await limiter.hold("w", rule).catch((error) => error);
        assert.ok(denied instanceof DeniedError);
        assert.equal(denied.result.retryAfter, 60);
      });
      await assert.rejects(
        limiter.hold("w", rule, () => Promise.reject(new Error("mine"))),
        /mine/,
      );
      await using again = await limiter.hold("w", rule);
      assert.equal(again.signal.aborted, false);
    });

    test("a lease that was lost says so", async () => {
      server.setTime(T);
      const rule = lease(1, 60);
      const held = await limiter.hold("lost", rule, { renew: false });
      assert.equal(await held.renew(), true);
      server.setTime(T + 60_000);
      assert.equal((await limiter.acquire("lost", rule, { holder: "another" })).allowed, true);
      assert.equal(await held.renew(), false);
      assert.equal(held.signal.aborted, true);
      assert.equal(await held.release(), false);
      assert.equal((await limiter.peek("lost", rule, { holder: "another" })).used, 1, "the other's is untouched");
    });

    test("what the server refuses comes through", async () => {
      await server.run("LPUSH", "app:list", "x");
      await assert.rejects(limiter.hit("list", sliding("1/minute")), /WRONGTYPE/);
      await assert.rejects(limiter.hit("x", sliding("1/minute"), { cost: 0 }), /cost must be an integer from 1/);
      assert.equal(limiter.mode, mode);
    });

    test("keys are bytes", async () => {
      const rule = sliding("1/minute");
      const key = Buffer.from([0, 255, 10, 13]);
      assert.equal((await limiter.hit(key, rule)).allowed, true);
      assert.equal((await limiter.hit(new Uint8Array(key), rule)).allowed, false);
      assert.equal(await server.run("EXISTS", Buffer.concat([Buffer.from("app:"), key])), 1);
    });

    test("every client reads the same", async () => {
      const rule = sliding("3/minute", "2/second");
      for (const kind of clients) {
        server.setTime(T);
        const other = await kind.open(server.port, { keyPrefix: `${kind.name}:` });
        const through = new Limiter(other.client, { prefix: "p:", timeout: 10_000 });
        await through.hit("k", rule);
        await through.hit("k", rule);
        const denied = await through.hit("k", rule);
        assert.deepEqual(
          { ...figures(denied), each: denied.each.length },
          {
            allowed: false,
            limit: 2,
            used: 2,
            remaining: 0,
            retryAfterMs: 1000,
            nextAfterMs: 1000,
            resetAfterMs: 1000,
            windowMs: 1000,
            atMs: 0,
            each: 2,
          },
          kind.name,
        );
        assert.equal((await through.hit("one", throttle("1/minute"))).used, 1, kind.name);
        const all = await through.all([{ key: "x", rule: sliding("1/minute") }]);
        assert.equal(all.each[0]?.used, 1, kind.name);
        assert.equal((await through.refund("k", rule)).refunded, 1, kind.name);
        assert.equal(
          await server.run("EXISTS", `${kind.name}:p:k`),
          1,
          `${kind.name}: the key is behind both prefixes`,
        );
        other.close();
      }
    });
  });
}

test("a lease is renewed while it is held", async () => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  const limiter = new Limiter(open.client, { timeout: 10_000 });
  // Renewed each two thirds of a second: a busy machine may be late by more than one.
  const rule = lease(1, 2);
  const held = await limiter.hold("renewed", rule);
  const end = async () => Number(((await server.run("ZRANGE", "renewed", 0, -1, "WITHSCORES")) as string[])[1]);
  const first = await end();
  while ((await end()) < first + 1200)
    assert.equal((await limiter.acquire("renewed", rule, { holder: "another" })).allowed, false);
  assert.equal(await held.release(), true);
  assert.equal((await limiter.acquire("renewed", rule, { holder: "another" })).allowed, true);
  open.close();
  await server.stop();
});

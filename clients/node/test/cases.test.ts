/** The cases that all packages share: ../../cases. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import {
  type Connection,
  calendar,
  clientAddress,
  fixed,
  Limiter,
  lease,
  type Rule,
  sliding,
  throttle,
  UnavailableError,
} from "redis-rl";
import { clients, type OpenClient } from "./support/clients.js";
import { modes, root, Server } from "./support/server.js";

// biome-ignore lint/suspicious/noExplicitAny: the cases are data, and the wrong ones are not typed.
type Any = any;

const read = (name: string): Any => JSON.parse(readFileSync(join(root, "clients/cases", `${name}.json`), "utf8"));
/** What is not exported: an error of the server is only seen through a call, and a key through a store. */
const internal = (name: string): Any => require(join(root, "clients/node/dist", `${name}.js`));

/** Fails on a field that the test does not know, which it would otherwise pass over. */
function knows(given: object, ...fields: string[]): void {
  for (const field of Object.keys(given)) assert.ok(fields.includes(field), `an unknown field ${field}`);
}

function says(attempt: () => unknown, parts: readonly string[]): Promise<void> {
  return assert.rejects(
    async () => attempt(),
    (error: Error) => {
      for (const part of parts) assert.ok(error.message.includes(part), `${part} is not in: ${error.message}`);
      return true;
    },
  );
}

function ruleOf(given: Any): Rule {
  if (typeof given !== "object" || given === null) return given;
  const known = "kind rates rate limit ttl burst zone starts cost force anchored name unit holder reserved";
  knows(given, ...known.split(" "));
  const { kind, rates, rate, limit, ttl, reserved: _, ...options } = given;
  switch (kind) {
    case "calendar":
      return calendar(rate, options);
    case "sliding":
      return (sliding as Any)(...rates, options);
    case "fixed":
      return (fixed as Any)(...rates, options);
    case "throttle":
      return throttle(rate, options);
    default:
      return lease(limit, ttl, options);
  }
}

/** The figures of a request that was allowed. */
const ALLOWED = {
  allowed: 1,
  limit: 9,
  used: 1,
  remaining: 8,
  "retry-after-ms": 0,
  "next-after-ms": 1,
  "reset-after-ms": 1,
  "window-ms": 0,
  "at-ms": 1,
};

/** A connection that keeps what it is sent, and replies as it is told. */
function recorder(reply: unknown = new Error("WRONGTYPE none of that")): Connection & { sent: string[][] } {
  const sent: string[][] = [];
  return {
    keyPrefix: "",
    sent,
    async send(command) {
      const words = command.map(String);
      sent.push(words);
      const told = typeof reply === "function" ? reply(words) : reply;
      if (told instanceof Error) throw told;
      return told;
    },
  };
}

/** A server that allows a reservation, so that it can be settled. */
function allowing(rule: Any): (words: string[]) => unknown {
  const map = new Map(Object.entries(ALLOWED));
  const each = (rule.rates ?? []).join().split(",");
  return (words) => {
    if (words.some((word) => /settle$/i.test(word))) return new Error("WRONGTYPE none of that");
    return each.length > 1 ? each.map(() => map) : map;
  };
}

/** Makes the call of a case. */
async function call(limiter: Limiter, given: Any): Promise<Any> {
  const { key, keys, rule, rules, options = {} } = given;
  const { at_ms: atMs, holder, holders, units, lease: held, actual, ...others } = options;
  const { within_ms: within, timeout_ms: timeout, ...more } = others;
  knows(more, "cost", "force");
  const made = rule && ruleOf(rule);
  const reserving = held === undefined ? {} : { lease: held };
  switch (given.call) {
    case "reserve":
      return limiter.reserve(key, made, units, reserving);
    case "settle":
      return (await limiter.reserve(key, made, units, reserving)).settle(actual);
    case "cancel":
      return (await limiter.reserve(key, made, units, reserving)).cancel();
    case "reserve_all":
      return limiter.reserveAll(
        rules.map((each: Any, i: number) => ({
          key: keys[i],
          rule: ruleOf(each),
          ...(each.reserved !== undefined && { reserve: each.reserved }),
        })),
        reserving,
      );
    case "hit":
      return limiter.hit(key, made, more);
    case "peek":
      return limiter.peek(key, made, more);
    case "turn":
      return limiter.turn(key, made, within, more);
    case "wait":
      return limiter.wait(key, made, { ...more, timeout });
    case "refund":
      return limiter.refund(key, made, { ...more, ...(atMs !== undefined && { atMs }) });
    case "reset":
      return limiter.reset(key, made);
    case "acquire":
      return limiter.acquire(key, made, { ...(holder !== undefined && { holder }) });
    case "release":
      return (limiter as Any).release(key, ...holders);
    case "all":
      return limiter.all(rules.map((each: Any, i: number) => ({ key: keys[i], rule: ruleOf(each) })));
    default:
      throw new Error(`an unknown call ${given.call}`);
  }
}

test("half of a surrogate pair is no text: it would share a key with all others", async () => {
  const connection = recorder();
  const limiter = new Limiter(connection, { mode: "module" });
  const half = "user \ud800";
  for (const calling of [
    limiter.hit(half, sliding("5/s")),
    limiter.reset(half),
    limiter.release("k", half),
    limiter.acquire("k", lease(1, 60), { holder: half }),
  ]) {
    await assert.rejects(calling, /half of a surrogate pair/);
  }
  assert.deepEqual(connection.sent, []);
  await assert.rejects(limiter.hit("user \u{1f600}", sliding("5/s")), /WRONGTYPE/);
});

describe("rates", () => {
  const { valid, invalid } = read("rates");
  for (const given of valid) {
    test(JSON.stringify(given.rates), () => {
      knows(given, "rates", "windows");
      for (const make of [sliding, fixed]) {
        const windows = (make as Any)(...given.rates).windows.map((window: Any) => [window.limit, window.windowMs]);
        assert.deepEqual(windows, given.windows);
      }
    });
  }
  for (const given of invalid) {
    test(`not ${JSON.stringify(given.rates)}`, async () => {
      knows(given, "rates", "error", "typed");
      for (const make of [sliding, fixed]) await says(() => (make as Any)(...given.rates), given.error);
    });
  }
});

describe("words", () => {
  const file = read("words");
  const valid = [...file.valid, ...file.reserve, ...file.calendar];
  const forms = [...file.modes, ...file.reserve_modes];
  // That a reservation is given to hit does not compile, and there is no rule that is one.
  const invalid = [...file.invalid, ...file.reserve_invalid.filter((given: Any) => given.call !== "hit")];
  const fields = ["call", "key", "keys", "rule", "rules", "prefix", "options", "now_ms"];
  /** The clock of this process stands still where a case says so. */
  const at = async <T>({ now_ms: now }: Any, work: () => Promise<T>): Promise<T> => {
    const real = Date.now;
    if (now !== undefined) Date.now = () => now;
    try {
      return await work();
    } finally {
      Date.now = real;
    }
  };
  const sentBy = async (given: Any, mode: Any, line = "WRONGTYPE none of that") => {
    const settles = given.call === "settle" || given.call === "cancel";
    const connection = recorder(settles ? allowing(given.rule) : new Error(line));
    const limiter = new Limiter(connection, { prefix: given.prefix ?? "", mode });
    await at(given, () => assert.rejects(call(limiter, given), new RegExp(line.slice(0, 9))));
    return connection.sent.at(-1)?.map((word, i, list) => {
      if (list[i - 1] !== "HOLD") return word;
      assert.match(word, /^[0-9a-f]{32}$/);
      return "HOLDER";
    });
  };
  for (const given of valid) {
    test(`${given.words.join(" ")} ${given.now_ms ?? ""}`, async () => {
      knows(given, ...fields, "words", "live");
      assert.deepEqual(await sentBy(given, "module"), given.words);
    });
  }
  for (const given of file.calendar_ended) {
    test(`the window has ended: ${given.words.join(" ")}`, async () => {
      knows(given, ...fields, "words");
      assert.deepEqual(await sentBy(given, "module", "ERR the window has ended"), given.words);
    });
  }
  for (const given of file.calendar_invalid) {
    test(`not ${JSON.stringify(given.rule)}`, async () => {
      knows(given, "rule", "error", "typed");
      await says(() => ruleOf(given.rule), given.error);
    });
  }
  for (const given of forms) {
    test(`in every mode: ${given.module.join(" ")}`, async () => {
      knows(given, ...fields, "module", "functions", "script");
      for (const mode of modes) {
        const sha = internal("lua").scriptSha;
        assert.deepEqual(
          (await sentBy(given, mode))?.map((word) => (word === sha ? "SHA1" : word)),
          given[mode],
        );
      }
    });
  }
  for (const given of invalid) {
    test(`not ${JSON.stringify(given).slice(0, 150)}`, async () => {
      knows(given, ...fields, "error", "typed");
      const settles = given.call === "settle";
      const connection = recorder(settles ? allowing(given.rule) : undefined);
      await says(() => call(new Limiter(connection, { mode: "module" }), given), given.error);
      const sent = connection.sent.map(([command]) => command);
      assert.deepEqual(sent, settles ? ["RL.PEEK", "RL.SLIDING"] : [], "it fails before it is sent");
    });
  }

  describe("live", () => {
    let server: Server;
    let open: OpenClient;
    before(async () => {
      server = await Server.start({ mode: "module" });
      open = (await clients[0]?.open(server.port)) as OpenClient;
    });
    after(async () => {
      open.close();
      await server.stop();
    });
    test("the server takes them", async () => {
      for (const given of valid) {
        if (given.live === false) continue;
        await server.run("FLUSHALL");
        const limiter = new Limiter(open.client, { prefix: given.prefix ?? "", mode: "module" });
        await at(given, () => call(limiter, given));
      }
    });
  });
});

describe("replies", () => {
  const file = read("replies");
  const { numbers, invalid } = file;
  const valid = [...file.valid, ...file.calendar];
  const underscored = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const shown = (result: Any, expected: Any): Any => {
    const names =
      "allowed limit used remaining retryAfterMs retryAfter nextAfterMs nextAfter resetAfterMs resetAfter windowMs atMs waitMs";
    const made: Any = {};
    for (const name of names.split(" ")) {
      if (name !== "waitMs" || "wait_ms" in expected) made[underscored(name)] = result[name] ?? null;
      else assert.equal(result.waitMs, 0);
    }
    if ("index" in expected) made.index = result.index;
    if ("each" in expected) made.each = result.each.map((one: Any, i: number) => shown(one, expected.each[i]));
    return made;
  };
  const answered = (given: Any, reply: unknown) => {
    const rules = given.rules?.map((rule: Any) => (rule.kind === "lease" ? { holder: "h", ...rule } : rule));
    const keys = given.rules?.map((_: unknown, i: number) => `k${i}`);
    const rule = given.rule?.kind === "lease" ? { holder: "h", ...given.rule } : given.rule;
    const fallback = { kind: "sliding", rates: ["100/minute"] };
    const whole = { ...given, key: "k", keys, rules, rule: given.rules ? undefined : (rule ?? fallback) };
    if (given.call === "release") whole.options = { holders: ["a"] };
    if (given.call === "turn") whole.options = { within_ms: 5000 };
    return call(new Limiter(recorder(reply), { mode: "module" }), whole);
  };
  for (const given of valid) {
    test(given.name, async () => {
      knows(given, "name", "call", "rule", "rules", "resp2", "resp3", "result", "headers", "problem");
      const asMaps = (value: Any): Any =>
        Array.isArray(value) ? value.map(asMaps) : typeof value === "object" ? new Map(Object.entries(value)) : value;
      for (const reply of [given.resp2, given.resp3, asMaps(given.resp3)]) {
        const result = await answered(given, reply);
        assert.deepEqual(shown(result, given.result), given.result);
        assert.deepEqual(result.headers(), given.headers);
        assert.deepEqual(result.problem() ?? null, given.problem);
      }
    });
  }
  for (const given of numbers) {
    test(given.name, async () => {
      knows(given, "name", "call", "reply", "result");
      assert.deepEqual(await answered(given, given.reply), given.result);
    });
  }
  for (const given of invalid) {
    test(`not ${given.name}`, async () => {
      knows(given, "name", "call", "rule", "rules", "reply");
      await assert.rejects(answered(given, given.reply), /The server replied/);
    });
  }
  test("what cannot be read is told in a few words, however long it is", async () => {
    const long = "x".repeat(100_000);
    for (const reply of [long, Array(100_000).fill(1n), new Map([[long, long]]), { [long]: long }]) {
      const error = await answered({ call: "release" }, reply).catch((error) => error);
      assert.ok(
        error.message.startsWith("The server replied") && error.message.length < 1000,
        String(error.message.length),
      );
    }
  });
});

describe("settlements", () => {
  const { settle, settle_invalid } = read("replies");
  const settled = async (reply: unknown) => {
    const map = new Map(Object.entries(ALLOWED));
    const connection = recorder((words: string[]) => (words[0] === "RL.SETTLE" ? reply : map));
    const limiter = new Limiter(connection, { mode: "module" });
    return (await limiter.reserve("k", sliding("5/minute"), 5)).settle(3);
  };
  for (const given of settle) {
    test(given.name, async () => {
      knows(given, "name", "reply", "result");
      if (given.result === "done") assert.equal(await settled(given.reply), true);
      else await assert.rejects(settled(given.reply), /settled already, with another/);
    });
  }
  for (const given of settle_invalid) {
    test(`not ${given.name}`, async () => {
      knows(given, "name", "reply");
      await assert.rejects(settled(given.reply), /The server replied/);
    });
  }
});

test("calendars: 20 zones, 10 years, each change of the clocks and each end of a month", () => {
  const { periodEnd } = internal("calendar");
  const { zones } = read("calendar");
  let times = 0;
  for (const [zone, { changes, ...lists }] of Object.entries<Any>(zones)) {
    for (const [name, runs] of Object.entries<number[][]>(lists)) {
      const [period, starts = "1"] = name.split(":");
      for (const [first = 0, ...lengths] of runs) {
        let from = first * 1000;
        for (const length of lengths) {
          const to = from + length * 60_000;
          const near = changes.flatMap((change: number) => [change * 1000 - 1, change * 1000, change * 1000 + 1]);
          for (const at of [from, to - 1, ...near.filter((time: number) => time >= from && time < to)]) {
            // Each from the beginning, without what is remembered.
            const end = periodEnd({ period, zone, starts: Number(starts) }, at);
            assert.equal(end, to, `${zone} ${name} ${new Date(at).toISOString()}`);
            times++;
          }
          from = to;
        }
      }
    }
  }
  assert.ok(times > 20_000, `${times}`);
});

describe("errors", () => {
  const { meaning, isEnded, isSettled } = internal("errors");
  for (const given of read("errors").meanings) {
    test(`what is done about: ${given.line}`, () => {
      knows(given, "line", "means");
      const error = new Error(given.line);
      assert.equal(isEnded(error) ? "ended" : isSettled(error) ? "settled" : null, given.means);
    });
  }
  for (const given of read("errors").lines) {
    test(given.line || "an empty line", () => {
      knows(given, "line", "unavailable", "retry", "permanent", "probe", "cluster");
      const found = meaning(given.line, given.cluster ?? false);
      const { unavailable, retry, permanent, probe } = given;
      assert.deepEqual(
        {
          unavailable: found === "unavailable" || found === "retry",
          retry: found === "retry",
          permanent: found === "permanent",
          probe: found === "probe",
        },
        { unavailable, retry, permanent, probe },
      );
    });
  }
});

describe("keys", () => {
  const { keys, calendar, halves, addresses, invalid } = read("keys");
  const { adapterKey } = internal("identity");
  const { policyOf } = internal("words");
  for (const given of [...keys, ...calendar]) {
    test(given.key, () => {
      knows(given, "rule", "identity", "prefix", "policy", "key");
      const rule = ruleOf(given.rule);
      const parts: [string, number][] = Array.isArray(given.identity) ? given.identity : [[given.identity, 1]];
      const identity = parts.map(([text, times]) => text.repeat(times)).join("");
      assert.equal(policyOf(rule).replace(/[%:{}]/g, encodeURIComponent), given.policy);
      assert.equal(adapterKey(given.prefix ?? "rl:", policyOf(rule), identity), given.key);
    });
  }
  for (const given of halves) {
    test(given.key, () => {
      knows(given, "units", "key");
      assert.equal(adapterKey(undefined, "api", String.fromCharCode(...given.units)), given.key);
    });
  }
  const options = ({ trusted, ipv6_prefix: ipv6Prefix }: Any) => ({
    ...(trusted && { trustedProxies: trusted }),
    ...(ipv6Prefix !== undefined && { ipv6Prefix }),
  });
  for (const given of addresses) {
    test(JSON.stringify(given), () => {
      knows(given, "peer", "forwarded", "trusted", "ipv6_prefix", "identity");
      const { peer, forwarded } = given;
      const identify = clientAddress(options(given));
      // node:http joins the lines with ", "; others give a list.
      for (const lines of [forwarded, forwarded?.join(", ")]) {
        const request = { socket: { remoteAddress: peer ?? undefined }, headers: { "x-forwarded-for": lines } };
        assert.equal(identify(request) ?? null, given.identity);
      }
    });
  }
  for (const given of invalid) {
    test(`not ${JSON.stringify(given)}`, () => {
      knows(given, "trusted", "ipv6_prefix");
      assert.throws(() => clientAddress(options(given)), RangeError);
    });
  }
});

describe("local", () => {
  const { LocalLimits } = internal("local");
  const { resultOf, resultOfAll } = internal("result");
  for (const given of read("local").cases) {
    test(given.name, () => {
      knows(given, "name", "processes", "steps");
      const local = new LocalLimits(given.processes);
      for (const { rules, times = 1, result: expected, ...more } of given.steps) {
        knows(more);
        const asked = rules.map(({ key, ...rule }: Any) => ({ key, rule: ruleOf(rule) }));
        for (let i = 0; i < times; i++) {
          const windows = local.decide(asked, false);
          const all = asked.length > 1;
          const result = all ? resultOfAll(asked, windows, "local") : resultOf(asked[0].rule, windows[0], "local");
          const retry = { 0: "none", undefined: "never" }[result.retryAfterMs as 0 | "undefined"] ?? "later";
          const each = (all ? result.each : [result]).map(({ allowed, limit, used }: Any) => ({
            allowed,
            limit,
            used,
          }));
          const told = { allowed: result.allowed, ...(all && { index: result.index }), retry, each };
          assert.deepEqual(told, expected);
        }
      }
    });
  }
});

test("defaults: each row is what the package uses", async () => {
  const { about: _, ...rows } = read("defaults");
  const {
    LIMITER,
    ADAPTER,
    STATUS,
    DENY_CACHE,
    IDENTITY,
    BREAKER_PAUSE,
    LOCAL,
    MODES,
    PROBE_AGAIN,
    WAITING,
    RESERVATION,
    RENEWALS,
    OPTIONS,
  } = internal("defaults");
  const { guard } = internal("guard");
  const { asking, identified } = internal("adapter");
  const { reserving } = internal("reservation");
  const full = { ...ALLOWED, allowed: 0, used: 9, remaining: 0, "retry-after-ms": 1000, "wait-ms": 0 };
  const rule = sliding("9/minute");

  /** What is sent for a caller that leaves while its call is under way. */
  const sentFor = async (call: (limiter: Limiter, signal: AbortSignal) => Promise<unknown>) => {
    const connection = recorder(new Map(Object.entries({ ...ALLOWED, "at-ms": 77, "wait-ms": 60_000 })));
    const leaving = new AbortController();
    const calling = call(new Limiter(connection, { mode: "module" }), leaving.signal);
    leaving.abort(new Error("gone"));
    await assert.rejects(calling, /gone/);
    await new Promise((resolve) => setTimeout(resolve, 20));
    return connection.sent.map((words) => words.join(" ")).filter((words) => !/^RL.(?:PEEK|SLIDING)/.test(words));
  };
  const turns = await sentFor((limiter, signal) => limiter.wait("k", rule, { signal }));
  const hits = await sentFor((limiter, signal) => limiter.hit("k", rule, { signal }));

  const keys: unknown[] = [];
  const connection = recorder(new Map(Object.entries(full)));
  const limiter = new Limiter(connection, { prefix: "app:", mode: "module", onDecision: ({ key }) => keys.push(key) });
  const denied = await limiter.hit("k", rule);
  const key = () => "k";
  const { refusal } = await guard(limiter, rule, { key }, () => undefined)({});
  const nobody = await guard(limiter, rule, {}, () => undefined)({});
  const away = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("away")) };
  const closed = new Limiter(away, { whenUnavailable: "closed", logger: { warn() {} } });
  const unavailable = await guard(closed, rule, { key }, () => undefined)({});
  const open = await guard(new Limiter(away, { logger: { warn() {} } }), rule, { key }, () => undefined)({});
  const adapter = asking(new Limiter(recorder()), {});
  const { "violated-policies": _names, status, ...problem } = denied.problem() as Any;
  assert.throws(() => identified(""), /no identity/);
  assert.deepEqual(
    [status, refusal.status, nobody.refusal.status],
    [STATUS.denied, STATUS.denied, STATUS.withoutIdentity],
  );
  assert.deepEqual([unavailable.refusal.status, open.refusal], [STATUS.unavailable, undefined]);
  assert.equal(new Limiter(recorder()).timeout, LIMITER.timeout);

  assert.deepEqual(
    {
      limiter: {
        name: new Limiter(recorder()).name,
        prefix: LIMITER.prefix,
        mode: LIMITER.mode,
        timeout_ms: LIMITER.timeout,
        deny_cache: OPTIONS.includes("denyCache"),
      },
      adapter: {
        prefix: ADAPTER.prefix,
        timeout_ms: adapter.timeout,
        when_unavailable: open.result.source,
        ipv6_prefix: ADAPTER.ipv6Prefix,
        deny_cache: adapter.denyCache,
        without_identity: nobody.refusal ? "refused" : "let through",
        status: { denied: STATUS.denied, unavailable: STATUS.unavailable, without_identity: STATUS.withoutIdentity },
      },
      deny_cache: { entries: DENY_CACHE.entries, bytes: DENY_CACHE.bytes, believed_at_most_ms: DENY_CACHE.believed },
      identity: { longest_bytes: IDENTITY.longest, kept_bytes: IDENTITY.kept, mark: IDENTITY.mark },
      local: { counters: LOCAL.counters },
      // The second is played in faults.test.ts.
      breaker: { pause_ms: BREAKER_PAUSE, certificate_that_fails: "unavailable" },
      mode: { modes: [LIMITER.mode, ...MODES], probed_again_ms: PROBE_AGAIN },
      wait: {
        outage_poll_ms: WAITING.outagePoll,
        turn_at_most_ms: WAITING.longestTurn,
        last_call_share_of_timeout: WAITING.lastCallShare,
      },
      hold: {
        first_poll_ms: WAITING.firstPoll,
        longest_poll_ms: WAITING.longestPoll,
        outage_poll_ms: WAITING.outagePoll,
        last_call_share_of_timeout: WAITING.lastCallShare,
        renewals_a_lease: RENEWALS,
      },
      reservation: {
        lease_ms: reserving().hold.leaseMs,
        remembered_at_least_ms: RESERVATION.remembered,
        renewals_a_lease: RENEWALS,
        holder: new RegExp(rows.reservation.holder).test(reserving().hold.holder) ? rows.reservation.holder : "another",
      },
      caller_leaves: {
        hit: hits.length === 0 ? "stays charged" : String(hits),
        turn: String(turns) === "RL.REFUND k SLIDING 60 9 COST 1 AT 77" ? "given back" : String(turns),
      },
      hook: { key: keys[0] === "k" ? "without the prefix" : String(keys[0]) },
      headers: ["RateLimit", "RateLimit-Policy", "Retry-After"].filter((name) => name in denied.headers()),
      problem: { type: problem.type, content_type: refusal.type, title: problem.title },
    },
    rows,
  );
  assert.equal(Object.keys(denied.headers()).length, rows.headers.length);
  assert.deepEqual(Object.keys(problem).sort(), ["title", "type"]);
});

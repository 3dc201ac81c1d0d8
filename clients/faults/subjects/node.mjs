// The subject of the Node.js package, over node-redis or ioredis as the first argument says.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("../../node/package.json", import.meta.url));
const { DeniedError, fixed, lease, Limiter, sliding, throttle, UnavailableError } = require("redis-rl");
const { Cluster, Redis } = require("ioredis");
const { createClient, createCluster, createSentinel } = require("redis");

const kind = process.argv[2];
const clients = new Map();
const limiters = new Map();
const reservations = new Map();
/** The commands under way that their caller can drop. */
const aborts = new Map();

const tell = (told) => process.stdout.write(`${JSON.stringify(told)}\n`);
const logger = { warn: (text) => tell({ log: "warning", text }) };

/** How late a timer was, and when. */
const lags = [];
async function measure() {
  for (;;) {
    const began = performance.now();
    await sleep(10);
    const now = performance.now();
    lags.push([now, now - began - 10]);
    if (lags.length > 5000) lags.splice(0, 1000);
  }
}
/** Now counts, too: a timer that should have fired by now is late. */
function lagSince(began) {
  const [last] = lags.at(-1) ?? [began];
  let lag = Math.max(0, performance.now() - last - 10);
  for (let i = lags.length - 1; i >= 0 && lags[i][0] >= began; i--) lag = Math.max(lag, lags[i][1]);
  return lag;
}

function ruleOf({ kind, rates, rate, limit, ttl, ...options }) {
  if (kind === "throttle") return throttle(rate, options);
  if (kind === "lease") return lease(limit, ttl, options);
  return { sliding, fixed }[kind](...rates, options);
}

const addresses = (list) =>
  list.map((text) => ({ host: text.slice(0, text.lastIndexOf(":")), port: Number(text.split(":").at(-1)) }));

/** A client as the README makes it, which handles its errors and sets nothing. */
async function clientOf({ url, cluster, sentinel, service }) {
  let client;
  if (kind === "ioredis") {
    if (cluster) client = new Cluster(addresses(cluster));
    else if (sentinel) client = new Redis({ sentinels: addresses(sentinel), name: service });
    else client = new Redis(url);
    return client.on("error", () => {});
  }
  if (cluster) client = createCluster({ rootNodes: cluster.map((text) => ({ url: `redis://${text}` })) });
  else if (sentinel) client = createSentinel({ name: service, sentinelRootNodes: addresses(sentinel) });
  else client = createClient({ url });
  client.on("error", () => {});
  client.connect().catch(() => {});
  return client;
}

function answer(result) {
  const { allowed, remaining, used, limit, retryAfterMs, atMs, waitMs, holder } = result;
  const outcome = allowed ? "allowed" : "denied";
  return { outcome, remaining, used, limit, retry_ms: retryAfterMs ?? null, at_ms: atMs, wait_ms: waitMs, holder };
}

/** How a call ended, in the words of the protocol. */
function failure(error, signal) {
  if (signal.aborted && error === signal.reason) return { outcome: "gave_up" };
  const text = `${error?.name}: ${error?.message}`;
  if (error instanceof DeniedError) return { ...answer(error.result), outcome: "denied" };
  if (error instanceof UnavailableError) return { outcome: "unavailable", error: text };
  if (error instanceof TypeError || error instanceof RangeError) return { outcome: "argument", error: text };
  const permanent = /^[A-Z]+ /.test(error?.message) || error?.name === "UnsupportedServerError";
  return { outcome: permanent ? "permanent" : "bug", error: text };
}

const seconds = (value) => (value === undefined || value === null ? undefined : value * 1000);
/** Without the fields that were not given. */
const given = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

/** Unix milliseconds with fractions. */
const clock = () => performance.timeOrigin + performance.now();

/** What became of a crowd; of each call in the order in which they began. */
function counted(replies, each) {
  const count = (list) => {
    const counts = {};
    for (const one of list) counts[one] = (counts[one] ?? 0) + 1;
    return counts;
  };
  const calls = replies.map(({ outcome, at_ms, wait_ms, asked, ended }) => {
    return { outcome, at_ms, wait_ms, asked_ms: asked, ended_ms: ended };
  });
  return {
    outcomes: count(replies.map(({ outcome }) => outcome)),
    errors: count(replies.flatMap(({ error }) => error ?? [])),
    slowest_ms: Math.max(...replies.map(({ ms }) => ms)),
    ...(each && { each: calls }),
  };
}

const commands = {
  async limiter(_, { name, connect, client, timeout, prefix, mode, hook }) {
    if (!clients.has(client)) clients.set(client, await clientOf(connect));
    const called = (command) => (["sliding", "fixed", "throttle"].includes(command) ? "hit" : command);
    const each = ({ command, keys }) => keys.forEach((key) => void tell({ hook: { call: called(command), key } }));
    const onDecision = hook ? each : undefined;
    const options = given({ name, prefix, mode, onDecision, timeout: timeout * 1000, logger });
    limiters.set(name, new Limiter(clients.get(client), options));
  },
  async hit(limiter, { key, rule, cost, force }, signal) {
    return answer(await limiter.hit(key, ruleOf(rule), given({ cost, force, signal })));
  },
  async peek(limiter, { key, rule, cost }, signal) {
    return answer(await limiter.peek(key, ruleOf(rule), given({ cost, signal })));
  },
  async all(limiter, { rules }, signal) {
    return answer(
      await limiter.all(
        rules.map(({ key, rule }) => ({ key, rule: ruleOf(rule) })),
        given({ signal }),
      ),
    );
  },
  async turn(limiter, { key, rule, ahead, cost }, signal) {
    return answer(await limiter.turn(key, ruleOf(rule), ahead * 1000, given({ cost, signal })));
  },
  async wait(limiter, { key, rule, timeout, cost }, signal) {
    return answer(await limiter.wait(key, ruleOf(rule), given({ timeout: seconds(timeout), cost, signal })));
  },
  async refund(limiter, { key, rule, cost, at_ms: atMs }, signal) {
    return { count: (await limiter.refund(key, ruleOf(rule), given({ cost, atMs, signal }))).refunded };
  },
  async reset(limiter, { key, rule }, signal) {
    return { count: await limiter.reset(key, ruleOf(rule), given({ signal })) };
  },
  async acquire(limiter, { key, rule, holder }, signal) {
    return answer(await limiter.acquire(key, ruleOf(rule), given({ holder, signal })));
  },
  async release(limiter, { key, holder }) {
    return { count: await limiter.release(key, holder) };
  },
  async hold(limiter, { id, key, rule, timeout, seconds: work = 0 }, signal) {
    let lostAfter = null;
    const options = given({ timeout: seconds(timeout), signal });
    await limiter.hold(
      key,
      ruleOf(rule),
      async (held) => {
        tell({ id, event: "held" });
        const began = performance.now();
        held.signal.addEventListener("abort", () => {
          lostAfter = performance.now() - began;
          tell({ id, event: "lost" });
        });
        await sleep(work * 1000, undefined, given({ signal })).catch(() => signal.throwIfAborted());
      },
      options,
    );
    return { outcome: "allowed", lost_after_ms: lostAfter };
  },
  async reserve(limiter, { key, rule, units, lease, as = "" }, signal) {
    const reservation = await limiter.reserve(key, ruleOf(rule), units, given({ lease, signal }));
    reservations.set(as, reservation);
    return answer(reservation.result);
  },
  async settle(_, { of = "", units }) {
    // Why it is not settled yet is in the log.
    return (await reservations.get(of).settle(units)) ? {} : { outcome: "unavailable" };
  },
  async crowd(limiter, command) {
    const { n, call = "hit", pause = 0, each = false } = command;
    const began = performance.now();
    const replies = [];
    for (let i = 0; i < n; i++) {
      const early = began + i * pause * 1000 - performance.now();
      if (early > 0) await sleep(early);
      const asked = clock();
      replies.push(run(limiter, { ...command, do: call }).then((reply) => ({ ...reply, asked, ended: clock() })));
    }
    return counted(await Promise.all(replies), each);
  },
  async burn(_, { id, ms }) {
    tell({ id, event: "burning" });
    const until = performance.now() + ms;
    while (performance.now() < until);
  },
  async cancel(_, { of }) {
    aborts.get(of)?.abort(new Error("dropped"));
  },
  async close(limiter) {
    limiter.close();
  },
};

/** A command, given up by its caller where it says so. */
async function run(limiter, command) {
  const began = performance.now();
  const abort = new AbortController();
  if (command.do !== "crowd") aborts.set(command.id, abort);
  const timer = command.within && setTimeout(() => abort.abort(new Error("given up")), command.within * 1000);
  let told;
  try {
    told = { outcome: "done", ...(await commands[command.do](limiter, command, abort.signal)) };
  } catch (error) {
    told = failure(error, abort.signal);
  }
  clearTimeout(timer);
  aborts.delete(command.id);
  return { ...told, ms: performance.now() - began, lag_ms: lagSince(began) };
}

const can = Object.keys(commands).filter((name) => name !== "limiter");
tell({ can: [...can, "cluster", "sentinel", "modes", "within", "event-loop", "lease-of-reserve", "each", "hook"] });
measure();
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  run(limiters.get(command.limiter), command).then((told) => tell({ id: command.id, ...told }));
}
process.exit();

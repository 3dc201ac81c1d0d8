/** Rules as values: what to limit, and by how much. A rule is made once and used for any number of keys. */

const UNITS: ReadonlyMap<string, number> = new Map(
  Object.entries({
    ms: 1,
    millisecond: 1,
    s: 1000,
    sec: 1000,
    second: 1000,
    m: 60_000,
    min: 60_000,
    minute: 60_000,
    h: 3_600_000,
    hour: 3_600_000,
    d: 86_400_000,
    day: 86_400_000,
    w: 604_800_000,
    week: 604_800_000,
  }),
);
const NAMES: ReadonlyMap<number, string> = new Map([
  [1000, "second"],
  [60_000, "minute"],
  [3_600_000, "hour"],
  [86_400_000, "day"],
  [604_800_000, "week"],
]);
const LONGEST_MS = 2_147_483_647_000;

/**
 * A length of time: seconds as a number (at most three decimal places), or text such as `"10s"`, `"2 minutes"`,
 * `"250ms"`, `"hour"`.
 */
export type Duration = number | string;

/**
 * A quota: `"100/minute"`, `"5 / 10s"`, `"1000/2 hours"`, or an object for numbers that are computed.
 *
 * `limit` is an integer from 0 to 2^53 − 1; 0 denies everything.
 */
export type Quota = string | { readonly limit: number; readonly window: Duration };

/** What a quota counts, as `RateLimit-Policy` names it. Without one it is requests. */
export type QuotaUnit = "requests" | "content-bytes" | "concurrent-requests";

/** One window of a rule. */
export interface Window {
  /** Units that fit into the window. */
  readonly limit: number;
  /** The window's length in milliseconds. */
  readonly windowMs: number;
}

/** What every kind of rule may be given. */
export interface Naming {
  /** The policy's name in HTTP headers: printable ASCII. Without it `default`, or the windows' names if there are several. */
  readonly name?: string;
  /** What is counted, for `RateLimit-Policy`. */
  readonly unit?: QuotaUnit;
}

export interface SlidingOptions extends Naming {
  /** Units that a request weighs unless the call says otherwise: an integer from 1, by default 1. */
  readonly cost?: number;
  /** Count the request whether it fits or not. `allowed` still says whether it fitted. */
  readonly force?: boolean;
}

export interface FixedOptions extends SlidingOptions {
  /** Begin a window with its first request and not at a multiple of its length since the epoch. */
  readonly anchored?: boolean;
}

export interface ThrottleOptions extends Naming {
  /** Requests that may come at once beyond the first. By default the quota's limit − 1. */
  readonly burst?: number;
  /** Units that a request weighs unless the call says otherwise: an integer from 1, by default 1. */
  readonly cost?: number;
}

/** An exact sliding window; see {@link sliding}. */
export interface SlidingRule extends Naming {
  readonly kind: "sliding";
  readonly windows: readonly Window[];
  readonly cost?: number;
  readonly force: boolean;
}

/** A counter a window; see {@link fixed}. */
export interface FixedRule extends Naming {
  readonly kind: "fixed";
  readonly windows: readonly Window[];
  readonly anchored: boolean;
  readonly cost?: number;
  readonly force: boolean;
}

/** A steady rate with a burst; see {@link throttle}. */
export interface ThrottleRule extends Naming {
  readonly kind: "throttle";
  readonly burst: number;
  readonly count: number;
  /** Whole seconds. */
  readonly period: number;
  readonly cost?: number;
}

/** At most so many holders at a time; see {@link lease}. */
export interface LeaseRule extends Naming {
  readonly kind: "lease";
  readonly limit: number;
  readonly leaseMs: number;
}

/** A rule that takes units from a quota. */
export type QuotaRule = SlidingRule | FixedRule | ThrottleRule;
export type Rule = QuotaRule | LeaseRule;

/**
 * An exact sliding window: no stretch of time as long as the window ever holds more than the limit. With several quotas
 * a request is allowed only if every window has room, and a denied one consumes nothing.
 *
 * ```ts
 * sliding("100/minute")
 * sliding("10/second", "100/minute", "1000/hour", { cost: 2 })
 * ```
 *
 * The windows are sorted, shortest first.
 *
 * @throws RangeError if a quota cannot be read or is out of range.
 */
export function sliding(...quotas: [Quota, ...Quota[]] | [Quota, ...Quota[], SlidingOptions]): SlidingRule {
  const [windows, options] = split<SlidingOptions>(quotas);
  return { kind: "sliding", windows, force: options.force ?? false, ...costing(options), ...naming(options) };
}

/**
 * One small counter a window. Windows begin at multiples of their length since the epoch, so that up to twice the limit
 * can pass around a boundary; with `anchored: true` a window begins with its first request.
 *
 * A rule with one window and cost 1 counts its denials, too.
 *
 * @throws RangeError if a quota cannot be read or is out of range.
 */
export function fixed(...quotas: [Quota, ...Quota[]] | [Quota, ...Quota[], FixedOptions]): FixedRule {
  const [windows, options] = split<FixedOptions>(quotas);
  const { anchored = false, force = false } = options;
  return { kind: "fixed", windows, anchored, force, ...costing(options), ...naming(options) };
}

/**
 * A steady rate (GCRA, as redis-cell's `CL.THROTTLE`): `throttle("30/minute", { burst: 15 })` lets 16 in at once, and
 * then one every two seconds.
 *
 * @throws RangeError if the quota cannot be read or is out of range.
 */
export function throttle(quota: Quota, options: ThrottleOptions = {}): ThrottleRule {
  const { limit, windowMs } = parseQuota(quota);
  // The command takes whole seconds: 5 in half a second are 10 in one.
  const factor = 1000 / gcd(windowMs, 1000);
  return {
    kind: "throttle",
    burst: integer("burst", options.burst ?? limit - 1, 0),
    count: integer("count", limit * factor, 1),
    period: (windowMs * factor) / 1000,
    ...costing(options),
    ...naming(options),
  };
}

/**
 * At most `limit` holders at a time: concurrent requests, jobs, connections. A lease that is neither renewed nor
 * released ends by itself after `length`.
 *
 * @throws RangeError if the limit or the length is out of range.
 */
export function lease(limit: number, length: Duration, options: Naming = {}): LeaseRule {
  return {
    kind: "lease",
    limit: integer("limit", limit, 0),
    leaseMs: parseDuration(length),
    ...naming({ unit: "concurrent-requests", ...options }),
  };
}

/** Milliseconds of a {@link Duration}, from 1 to 2147483647 seconds. */
export function parseDuration(duration: Duration): number {
  let ms = Number.NaN;
  if (typeof duration === "number") {
    ms = Math.round(duration * 1000);
    if (Math.abs(ms / 1000 - duration) > 1e-9 * Math.abs(duration)) ms = Number.NaN;
  } else {
    const match = /^\s*(\d+(?:\.\d{1,3})?)?\s*([a-z]+)\s*$/i.exec(duration);
    const word = match?.[2]?.toLowerCase() ?? "";
    const unit = UNITS.get(word) ?? UNITS.get(word.replace(/s$/, ""));
    if (match && unit !== undefined) ms = Math.round(Number(match[1] ?? 1) * unit * 1000) / 1000;
  }
  if (!Number.isInteger(ms) || ms < 1 || ms > LONGEST_MS) {
    throw new RangeError(
      `${JSON.stringify(duration)} is no length of time from 0.001 to 2147483647 seconds in whole milliseconds, such as 60, "10s" or "2 minutes"`,
    );
  }
  return ms;
}

/** A length in seconds as the commands take it: shortest decimal, at most three places. */
export function seconds(ms: number): string {
  const whole = Math.floor(ms / 1000);
  const rest = ms % 1000;
  return rest === 0 ? String(whole) : `${whole}.${String(rest).padStart(3, "0").replace(/0+$/, "")}`;
}

/** The name of a policy in HTTP headers. `index` and `of` say which window of how many. */
export function policyName(rule: Rule, index = 0, of = 1): string {
  if (of === 1) return rule.name ?? "default";
  const windowMs = rule.kind === "sliding" || rule.kind === "fixed" ? (rule.windows[index]?.windowMs ?? 0) : 0;
  const window = NAMES.get(windowMs) ?? `${seconds(windowMs)}s`;
  return rule.name === undefined ? window : `${rule.name}-${window}`;
}

/** What a call may say instead of the rule. */
export interface Overrides {
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: string | Uint8Array | undefined;
}

/** The words of a rule as its command takes them behind the key. */
export function words(rule: Rule, { cost, force, holder }: Overrides = {}): (string | Uint8Array)[] {
  switch (rule.kind) {
    case "throttle": {
      const units = cost ?? rule.cost;
      const plain = [String(rule.burst), String(rule.count), String(rule.period)];
      return units === undefined ? plain : [...plain, String(units)];
    }
    case "lease":
      if (holder === undefined) throw new TypeError("a lease needs a holder");
      return [String(rule.limit), seconds(rule.leaseMs), holder];
    default: {
      const list = rule.windows.flatMap(({ limit, windowMs }) => [seconds(windowMs), String(limit)]);
      if (rule.kind === "fixed" && rule.anchored) list.push("ANCHORED");
      const units = cost ?? rule.cost;
      // A cost of 1 is sent, too: the module stores a log in another form if requests have a weight.
      if (units !== undefined) list.push("COST", String(units));
      if (force ?? rule.force) list.push("FORCE");
      return list;
    }
  }
}

function parseQuota(quota: Quota): Window {
  if (typeof quota === "object") {
    return { limit: integer("limit", quota.limit, 0), windowMs: parseDuration(quota.window) };
  }
  const match = /^\s*(\d+)\s*\/(.*)$/s.exec(quota);
  if (!match) throw new RangeError(`${JSON.stringify(quota)} is no quota such as "100/minute"`);
  return { limit: integer("limit", Number(match[1]), 0), windowMs: parseDuration(match[2] ?? "") };
}

function split<Options extends object>(quotas: readonly (Quota | Options)[]): [Window[], Partial<Options>] {
  const last = quotas.at(-1);
  const options = typeof last === "object" && !("limit" in last) ? (last as Options) : undefined;
  const windows = (options ? quotas.slice(0, -1) : quotas).map((quota) => parseQuota(quota as Quota));
  if (windows.length === 0) throw new RangeError("a rule needs a quota");
  return [windows.sort((a, b) => a.windowMs - b.windowMs), options ?? {}];
}

function costing({ cost }: { readonly cost?: number | undefined }): { cost?: number } {
  return cost === undefined ? {} : { cost: integer("cost", cost, 1) };
}

function naming({ name, unit }: Naming): Naming {
  if (name !== undefined && !/^[\x20-\x7e]+$/.test(name)) {
    throw new RangeError("the name of a policy is printable ASCII");
  }
  return { ...(name !== undefined && { name }), ...(unit !== undefined && { unit }) };
}

function integer(what: string, value: number, least: number): number {
  if (!Number.isSafeInteger(value) || value < least) {
    throw new RangeError(`${what} must be an integer from ${least} to ${Number.MAX_SAFE_INTEGER}, not ${value}`);
  }
  return value;
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}

/** Rules as values: what to limit, and by how much. A rule is made once and used for any number of keys. */

import { type Calendar, isZone, type Period, periodEnd } from "./calendar.js";
import { checkedWord, type Word } from "./keys.js";

const UNITS: ReadonlyMap<string, number> = new Map(
  (
    [
      [1, "ms millisecond milliseconds"],
      [1000, "s sec secs second seconds"],
      [60_000, "m min mins minute minutes"],
      [3_600_000, "h hr hrs hour hours"],
      [86_400_000, "d day days"],
      [604_800_000, "w week weeks"],
    ] as const
  ).flatMap(([ms, names]) => names.split(" ").map((name) => [name, ms] as const)),
);
const MOST = Number.MAX_SAFE_INTEGER;
const MOST_WINDOWS = 16;
const LONGEST_MS = 2_147_483_647_000;

/**
 * A length of time: seconds as a number (at most three decimal places), or text such as `"10s"`, `"2 minutes"`,
 * `"250ms"`, `"hour"`.
 */
export type Duration = number | string;

/**
 * A rate: `"100/minute"`, `"5 per 2 seconds"`, `"200_000/15min"`, several joined by commas, or, for numbers that are
 * computed, a pair of limit and seconds.
 *
 * The limit is an integer from 0 to 2^53 − 1; 0 denies everything. Units are ms, s, min, h, d, w, and their names.
 */
export type Rate = string | readonly [limit: number, seconds: number];

/** What a rule counts, as `RateLimit-Policy` names it: `requests` unless given. Printable ASCII. */
export type QuotaUnit = "requests" | "content-bytes" | "concurrent-requests" | (string & {});

/** One window of a rule. */
export interface Window {
  /** Units that fit into the window. */
  readonly limit: number;
  /** The window's length in milliseconds. */
  readonly windowMs: number;
}

/** What every kind of rule may be given. */
export interface Naming {
  /** The policy's name in HTTP headers and in the keys of adapters: printable ASCII. Without it the windows name it. */
  readonly name?: string;
  /** What is counted, for `RateLimit-Policy`. */
  readonly unit?: QuotaUnit;
}

export interface SlidingOptions extends Naming {
  /** Units that a request weighs unless the call says otherwise: an integer from 1, by default 1. In `all`, 0 checks only. */
  readonly cost?: number;
  /** Count the request whether it fits or not. `allowed` still says whether it fitted. */
  readonly force?: boolean;
}

export interface FixedOptions extends SlidingOptions {
  /** Begin a window with its first request and not at a multiple of its length since the epoch. */
  readonly anchored?: boolean;
}

export interface CalendarOptions extends SlidingOptions {
  /** The time zone, a name such as `Europe/Berlin`. By default `UTC`. */
  readonly zone?: string;
  /**
   * What a period begins with: the day of a month (1 to 31; of a month that is too short its last), the day of a week (1,
   * Monday, to 7), or the month of a year (1 to 12). By default 1.
   */
  readonly starts?: number;
}

export interface ThrottleOptions extends Naming {
  /** Requests that may come at once beyond the first. By default the rate's limit − 1. */
  readonly burst?: number;
  /** Units that a request weighs unless the call says otherwise: an integer from 1, by default 1. In `all`, 0 checks only. */
  readonly cost?: number;
}

export interface LeaseRuleOptions extends Naming {
  /** Who asks for the lease, where the call does not say. */
  readonly holder?: Word;
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

/** A counter for each day, week, month or year; see {@link calendar}. */
export interface CalendarRule extends Naming, Calendar {
  readonly kind: "calendar";
  readonly limit: number;
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

/** At most a number of holders at a time; see {@link lease}. */
export interface LeaseRule extends Naming {
  readonly kind: "lease";
  readonly limit: number;
  readonly leaseMs: number;
  readonly holder?: Word;
}

/** A lease rule that says who asks, as {@link Limiter.all} needs it. */
export interface HeldLeaseRule extends LeaseRule {
  readonly holder: Word;
}

/** A rule that takes units from a quota. */
export type QuotaRule = SlidingRule | FixedRule | CalendarRule | ThrottleRule;
/** A rule whose units can be reserved, forced and checked with a cost of 0. */
export type UnitRule = Exclude<QuotaRule, ThrottleRule>;
/** A rule in which callers wait for their turn. */
export type TurnRule = SlidingRule | ThrottleRule;
export type Rule = QuotaRule | LeaseRule;

/**
 * An exact sliding window: no stretch of time as long as the window ever holds more than the limit. With several rates
 * a request is allowed only if every window has room, and a denied one consumes nothing.
 *
 * ```ts
 * sliding("100/minute")
 * sliding("10/second, 100/minute", "1000/hour", { cost: 2 })
 * ```
 *
 * @throws RangeError if a rate cannot be read or is out of range, or two windows have the same length.
 */
export function sliding(rate: Rate, ...more: [...Rate[], Rate | SlidingOptions]): SlidingRule;
export function sliding(rate: Rate, ...more: Rate[]): SlidingRule;
export function sliding<const R extends readonly Rate[]>(...rates: R extends readonly [] ? [Rate] : R): SlidingRule;
export function sliding(...given: readonly (Rate | SlidingOptions)[]): SlidingRule {
  const [windows, options] = split<SlidingOptions>(given);
  known("sliding()", options, ["cost", "force", "name", "unit"]);
  return { kind: "sliding", windows, force: options.force ?? false, ...costing(options), ...naming(options) };
}

/**
 * One small counter a window. Windows begin at multiples of their length since the epoch, so that up to twice the limit
 * can pass around a boundary; with `anchored: true` a window begins with its first request.
 *
 * A rule with one window and no cost counts its denials, too.
 *
 * @throws RangeError if a rate cannot be read or is out of range, or two windows have the same length.
 */
export function fixed(rate: Rate, ...more: [...Rate[], Rate | FixedOptions]): FixedRule;
export function fixed(rate: Rate, ...more: Rate[]): FixedRule;
export function fixed<const R extends readonly Rate[]>(...rates: R extends readonly [] ? [Rate] : R): FixedRule;
export function fixed(...given: readonly (Rate | FixedOptions)[]): FixedRule {
  const [windows, options] = split<FixedOptions>(given);
  known("fixed()", options, ["anchored", "cost", "force", "name", "unit"]);
  const { anchored = false, force = false } = options;
  return { kind: "fixed", windows, anchored, force, ...costing(options), ...naming(options) };
}

/**
 * A fixed window of the calendar: `calendar("5_000_000/month", { zone: "Europe/Berlin", starts: 15 })` counts from the 15th of
 * each month, by the clocks of Berlin. The rate is a limit and a `day`, `week`, `month` or `year`.
 *
 * A period begins with the first moment of its first day, and ends where the next one begins.
 *
 * @throws RangeError if the rate cannot be read, the zone is not known, or a number is out of range.
 */
export function calendar(rate: string, options: CalendarOptions = {}): CalendarRule {
  known("calendar()", options, ["zone", "starts", "cost", "force", "name", "unit"]);
  const { zone = "UTC", starts = 1, force = false } = options;
  const [, limit, unit] = (typeof rate === "string" && CALENDAR.exec(rate)) || [];
  const period = unit?.toLowerCase() as Period | undefined;
  if (period === undefined) {
    throw new RangeError(`${show(rate)} is not a limit a day, week, month or year, such as "1000/month"`);
  }
  if (!isZone(zone)) throw new RangeError(`zone must be a name such as "Europe/Berlin", not ${show(zone)}`);
  return {
    kind: "calendar",
    limit: integer("the limit", Number(limit?.replaceAll("_", "")), 0),
    period,
    zone,
    starts: integer("starts", starts, 1, { day: 1, week: 7, month: 31, year: 12 }[period]),
    force,
    ...costing(options),
    ...naming(options),
  };
}

/**
 * A steady rate (GCRA, as redis-cell's `CL.THROTTLE`): `throttle("30/minute", { burst: 15 })` lets 16 in at once, and
 * then one every two seconds.
 *
 * @throws RangeError if the rate cannot be read or is out of range.
 */
export function throttle(rate: Rate, options: ThrottleOptions = {}): ThrottleRule {
  known("throttle()", options, ["burst", "cost", "name", "unit"]);
  const [window, ...more] = readRate(rate);
  if (!window || more.length > 0) throw new RangeError(`a throttle takes one rate, not ${show(rate)}`);
  const { limit, windowMs } = window;
  // The command takes whole seconds: 5 in half a second are 10 in one.
  const factor = 1000 / gcd(windowMs, 1000);
  const count = integer("the limit of a throttle", limit * factor, 1);
  const period = (windowMs * factor) / 1000;
  if (count > period * 1e9) throw new RangeError(`${show(rate)} is more than one unit a nanosecond`);
  const burst = integer("burst", options.burst ?? limit - 1, 0, MOST - 1);
  return { kind: "throttle", burst, count, period, ...costing(options), ...naming(options) };
}

/**
 * At most `limit` holders at a time: concurrent requests, jobs, connections. A lease that is neither renewed nor
 * released ends by itself after `ttl`: seconds, or text such as `"2 minutes"`.
 *
 * @throws RangeError if the limit or the length is out of range.
 */
export function lease<const O extends LeaseRuleOptions = LeaseRuleOptions>(
  limit: number,
  ttl: Duration,
  options?: O,
): O extends { readonly holder: Word } ? HeldLeaseRule : LeaseRule;
export function lease(limit: number, ttl: Duration, options: LeaseRuleOptions = {}): LeaseRule {
  known("lease()", options, ["holder", "name", "unit"]);
  return {
    kind: "lease",
    limit: integer("the limit", limit, 0),
    leaseMs: readDuration(ttl),
    ...(options.holder !== undefined && { holder: holding(options.holder) }),
    ...naming({ unit: "concurrent-requests", ...options }),
  };
}

/** Fails where an option is misspelt, which would otherwise change nothing. */
export function known(what: string, options: unknown, names: readonly string[]): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new TypeError(`the options of ${what} are an object, and not ${show(options)}`);
  }
  const other = Object.keys(options).find((name) => !names.includes(name));
  if (other !== undefined) throw new TypeError(`${what} has no option ${other}; it has ${names.join(", ")}`);
}

/** Milliseconds of a {@link Duration}, from 1 to 2147483647 seconds. */
export function readDuration(duration: Duration): number {
  if (typeof duration === "number") return milliseconds(String(duration), 1000, duration);
  const match = typeof duration === "string" ? DURATION.exec(duration) : null;
  const unit = UNITS.get(match?.[2]?.toLowerCase() ?? "");
  if (!match || unit === undefined) {
    throw new RangeError(`${show(duration)} is not a length of time such as 60, "10s" or "2 minutes"`);
  }
  return milliseconds(match[1] ?? "1", unit, duration);
}

/** A length in seconds as the commands take it: shortest decimal, at most three places. */
export function seconds(ms: number): string {
  const whole = Math.floor(ms / 1000);
  const rest = ms % 1000;
  return rest === 0 ? String(whole) : `${whole}.${String(rest).padStart(3, "0").replace(/0+$/, "")}`;
}

/** What a call may say instead of the rule. */
export interface Overrides {
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: Word | undefined;
  /** The time whose period a calendar counts in, in unix milliseconds; now unless given. */
  readonly at?: number | undefined;
  /** Take a turn that comes within this number of milliseconds. */
  readonly within?: number | undefined;
  /** Hold the units for this holder, so long. */
  readonly hold?: { readonly holder: string; readonly leaseMs: number } | undefined;
}

/**
 * The words of a rule as its command takes them behind the key. `least` is the smallest cost that the command takes. A
 * sliding rule always sends a cost, which makes the server store the log in its compact form.
 */
export function words(rule: Rule, overrides: Overrides = {}, least: 0 | 1 = 1): Word[] {
  checked(rule);
  const { cost, force, holder, at = Date.now(), within, hold } = overrides;
  const turn = within === undefined ? [] : ["WITHIN", String(within)];
  if (rule.kind === "lease") {
    if (cost !== undefined || force !== undefined) throw new TypeError("a lease has neither cost nor force");
    return [String(rule.limit), seconds(rule.leaseMs), holding(holder ?? rule.holder)];
  }
  const given = cost ?? rule.cost;
  const units = given === undefined ? undefined : String(integer("cost", given, least));
  if (rule.kind === "throttle") {
    if (force !== undefined) throw new TypeError("a throttle cannot be forced");
    const plain = [String(rule.burst), String(rule.count), String(rule.period)];
    return [...plain, ...(units === undefined ? [] : [units]), ...turn];
  }
  const list: string[] = [];
  if (rule.kind === "calendar") list.push(`@${periodEnd(rule, at)}`, String(rule.limit));
  else for (const { limit, windowMs } of rule.windows) list.push(seconds(windowMs), String(limit));
  if (rule.kind === "fixed" && rule.anchored) list.push("ANCHORED");
  if (units !== undefined) list.push("COST", units);
  else if (rule.kind === "sliding") list.push("COST", "1");
  list.push(...turn);
  if (hold) list.push("HOLD", hold.holder, seconds(hold.leaseMs));
  if (force ?? rule.force) list.push("FORCE");
  return list;
}

/** What names the counters of a rule, for RL.RESET. */
export function counters(rule: FixedRule | CalendarRule): string[] {
  if (rule.kind === "calendar") return [`@${periodEnd(rule, Date.now())}`];
  return rule.windows.map(({ windowMs }) => seconds(windowMs));
}

/** The rule, if units of it can be reserved. */
export function reservable(rule: Rule): UnitRule {
  const { kind } = checked(rule);
  if (kind === "throttle" || kind === "lease") {
    throw new TypeError(`a reservation takes a sliding, a fixed or a calendar rule, and not a ${kind}`);
  }
  if ((rule as UnitRule).force) throw new TypeError("a reservation cannot be forced");
  return rule as UnitRule;
}

/** The rule, if a caller can wait for its turn in it. */
export function turnable(rule: TurnRule): TurnRule {
  const { kind } = checked<Rule>(rule);
  if (kind !== "sliding" && kind !== "throttle") {
    throw new TypeError(`a turn takes a sliding rule or a throttle, and not a rule of the kind ${kind}`);
  }
  if ((rule as SlidingRule).force) throw new TypeError("a turn cannot be forced");
  return rule;
}

/** The windows of a rule; of a throttle the time in which an empty bucket fills: its rate, in the long run. */
export function windowsOf(rule: Rule): readonly Window[] {
  if (rule.kind === "lease") return [{ limit: rule.limit, windowMs: rule.leaseMs }];
  if (rule.kind === "calendar") return [{ limit: rule.limit, windowMs: periodEnd(rule, Date.now()) - Date.now() }];
  if (rule.kind !== "throttle") return rule.windows;
  const limit = rule.burst + 1;
  return [{ limit, windowMs: Math.ceil((limit * rule.period * 1000) / rule.count) }];
}

/** The policy of a rule in the keys of adapters: its name, else its kind with its limits and windows. */
export function policyOf(rule: Rule): string {
  return rule.name ?? describe(rule);
}

const descriptions = new WeakMap<Rule, string>();

/** A rule as text: its kind with its limits and windows. */
export function describe(rule: Rule): string {
  let text = descriptions.get(rule);
  if (text === undefined) {
    text = described(rule);
    descriptions.set(rule, text);
  }
  return text;
}

function described(rule: Rule): string {
  switch (rule.kind) {
    case "throttle":
      return `throttle-${rule.burst}-${rule.count}/${rule.period}s`;
    case "lease":
      return `lease-${rule.limit}/${seconds(rule.leaseMs)}s`;
    case "calendar": {
      const { limit, period, zone, starts } = rule;
      return `calendar-${limit}/${period} ${zone}${starts === 1 ? "" : ` ${starts}`}`;
    }
    default: {
      const kind = rule.kind === "fixed" && rule.anchored ? "anchored" : rule.kind;
      return `${kind}-${rule.windows.map(({ limit, windowMs }) => `${limit}/${seconds(windowMs)}s`).join(",")}`;
    }
  }
}

/** Whether a request counts also where it does not fit. A throttle and a lease cannot be forced. */
export function isForced(rule: Rule, force: boolean | undefined): boolean {
  return rule.kind !== "throttle" && rule.kind !== "lease" && (force ?? rule.force);
}

/** The rule, or an error that says what was given in its place. */
export function checked<R extends Rule>(rule: R): R {
  if (typeof rule === "object" && rule !== null && KINDS.has(rule.kind)) return rule;
  throw new TypeError(
    `a rule is made by sliding(), fixed(), calendar(), throttle() or lease(), and is not ${show(rule)}`,
  );
}

/** The rule, if it is a lease. */
export function checkedLease(rule: LeaseRule): LeaseRule {
  if (checked<Rule>(rule).kind === "lease") return rule;
  throw new TypeError(`a lease is made by lease(), and not by ${(rule as Rule).kind}()`);
}

const KINDS = new Set(["sliding", "fixed", "calendar", "throttle", "lease"]);

/** The command of a rule. */
export function commandOf(rule: Rule): "sliding" | "fixed" | "throttle" | "acquire" {
  const { kind } = checked(rule);
  return kind === "lease" ? "acquire" : kind === "calendar" ? "fixed" : kind;
}

/** The keyword of a rule. */
export function keyword(rule: Rule): string {
  return commandOf(rule).toUpperCase();
}

/** The windows of a rate, as written. */
function readRate(rate: Rate): Window[] {
  if (Array.isArray(rate) && rate.length === 2) {
    const [limit, length] = rate as [number, number];
    return [{ limit: integer("the limit", limit, 0), windowMs: milliseconds(String(length), 1000, length) }];
  }
  if (typeof rate !== "string") throw notARate(rate);
  return rate.split(",").map((text) => {
    const match = RATE.exec(text);
    const unit = UNITS.get(match?.[3]?.toLowerCase() ?? "");
    if (!match || unit === undefined) throw notARate(text.trim() === "" ? rate : text);
    const limit = integer("the limit", Number(match[1]?.replaceAll("_", "")), 0);
    return { limit, windowMs: milliseconds(match[2] ?? "1", unit, text.trim()) };
  });
}

/** Of ASCII alone, as in every language: \s takes other white space, too. */
const DURATION = /^[ \t\n\r\f\v]*([0-9]+(?:\.[0-9]{1,3})?)?[ \t\n\r\f\v]*([a-z]+)[ \t\n\r\f\v]*$/i;
const RATE =
  /^[ \t\n\r\f\v]*([0-9]+(?:_[0-9]+)*)(?:[ \t\n\r\f\v]*\/|[ \t\n\r\f\v]+per(?=[ \t\n\r\f\v]))[ \t\n\r\f\v]*([0-9]+(?:\.[0-9]{1,3})?)?[ \t\n\r\f\v]*([a-z]+)[ \t\n\r\f\v]*$/i;

const CALENDAR =
  /^[ \t\n\r\f\v]*([0-9]+(?:_[0-9]+)*)(?:[ \t\n\r\f\v]*\/|[ \t\n\r\f\v]+per(?=[ \t\n\r\f\v]))[ \t\n\r\f\v]*(day|week|month|year)s?[ \t\n\r\f\v]*$/i;

function notARate(given: unknown): RangeError {
  return new RangeError(`${show(given)} is not a rate such as "100/minute" or [100, 60]`);
}

/** A decimal number of units in whole milliseconds, without rounding. */
function milliseconds(decimal: string, unit: number, given: unknown): number {
  const [whole = "", places = ""] = decimal.split(".");
  const thousandths = Number(whole + places.padEnd(3, "0"));
  const ms = (thousandths * unit) / 1000;
  if (!/^[0-9]+$/.test(whole) || !/^[0-9]{0,3}$/.test(places) || !Number.isInteger(ms) || ms < 1 || ms > LONGEST_MS) {
    throw new RangeError(
      `a window is a whole number of milliseconds from 0.001 to 2147483647 seconds, not ${show(given)}`,
    );
  }
  return ms;
}

function split<Options extends object>(rates: readonly (Rate | Options)[]): [Window[], Partial<Options>] {
  const last = rates.at(-1);
  const options = typeof last === "object" && last !== null && !Array.isArray(last) ? (last as Options) : undefined;
  const windows = (options ? rates.slice(0, -1) : rates).flatMap((rate) => readRate(rate as Rate));
  if (windows.length < 1 || windows.length > MOST_WINDOWS) {
    throw new RangeError(`a rule has 1 to ${MOST_WINDOWS} windows, not ${windows.length}`);
  }
  windows.sort((a, b) => a.windowMs - b.windowMs);
  if (windows.some(({ windowMs }, i) => windowMs === windows[i + 1]?.windowMs)) {
    throw new RangeError("each window of a rule has another length");
  }
  return [windows, options ?? {}];
}

function costing({ cost }: { readonly cost?: number | undefined }): { cost?: number } {
  return cost === undefined ? {} : { cost: integer("cost", cost, 0) };
}

function naming({ name, unit }: Naming): Naming {
  for (const [what, text] of Object.entries({ name, unit })) {
    if (text !== undefined && !/^[\x20-\x7e]+$/.test(text)) {
      throw new RangeError(`the ${what} of a policy is printable ASCII, not ${show(text)}`);
    }
  }
  return { ...(name !== undefined && { name }), ...(unit !== undefined && { unit }) };
}

function holding(holder: Word | undefined): Word {
  if (holder === undefined || holder.length === 0) throw new TypeError("a lease needs a holder");
  return checkedWord("a holder", holder);
}

function integer(what: string, value: number, least: number, most = MOST): number {
  if (!Number.isSafeInteger(value) || value < least || value > most) {
    throw new RangeError(`${what} must be an integer from ${least} to ${most}, not ${show(value)}`);
  }
  return value;
}

function show(value: unknown): string {
  const isNumber = typeof value === "number" || typeof value === "bigint";
  return isNumber ? String(value) : (JSON.stringify(value) ?? String(value));
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}

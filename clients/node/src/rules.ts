/** Rules as values: what to limit, and by how much. A rule is made once and used for any number of keys. */

import { type Calendar, isZone, type Period } from "./calendar.js";
import {
  type Duration,
  holding,
  integer,
  known,
  LONGEST_MS,
  MOST,
  milliseconds,
  readDuration,
  readLength,
  show,
} from "./checks.js";
import type { Word } from "./keys.js";

const MOST_WINDOWS = 16;

/**
 * A rate: `"100/minute"`, `"5 per 2 seconds"`, `"200_000/15min"`, several joined by commas, or, for numbers that are
 * computed, a pair of limit and seconds.
 *
 * The limit is an integer from 0 to 2^53 − 1; 0 denies everything. Units are ms, s, min, h, d, w, and their names.
 */
export type Rate = string | readonly [limit: number, seconds: number];

/** What a rule counts, as `RateLimit-Policy` names it: `requests` unless given. Printable ASCII. */
export type QuotaUnit = "requests" | "content-bytes" | "concurrent-requests" | (string & {});

export interface Window {
  /** Units that fit into the window. */
  readonly limit: number;
  /** The window's length in milliseconds. */
  readonly windowMs: number;
}

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

export interface ThrottleOptions extends Omit<SlidingOptions, "force"> {
  /** Requests that may come at once beyond the first. By default the rate's limit − 1. */
  readonly burst?: number;
}

export interface LeaseRuleOptions extends Naming {
  /** Who asks for the lease, where the call does not say. */
  readonly holder?: Word;
}

export interface SlidingRule extends SlidingOptions {
  readonly kind: "sliding";
  readonly windows: readonly Window[];
  readonly force: boolean;
}

export interface FixedRule extends Omit<SlidingRule, "kind"> {
  readonly kind: "fixed";
  readonly anchored: boolean;
}

export interface CalendarRule extends Omit<SlidingRule, "kind" | "windows">, Calendar {
  readonly kind: "calendar";
  readonly limit: number;
}

export interface ThrottleRule extends ThrottleOptions {
  readonly kind: "throttle";
  readonly burst: number;
  readonly count: number;
  /** Whole seconds. */
  readonly period: number;
}

export interface LeaseRule extends LeaseRuleOptions {
  readonly kind: "lease";
  readonly limit: number;
  readonly leaseMs: number;
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
export function sliding<const R extends readonly Rate[]>(...rates: R extends readonly [] ? [Rate] : R): SlidingRule;
export function sliding(...given: readonly (Rate | SlidingOptions)[]): SlidingRule {
  const [windows, options] = split<SlidingOptions>(given);
  known("sliding()", options, ["cost", "force", "name", "unit"]);
  return { kind: "sliding", windows, force: options.force ?? false, ...common(options) };
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
export function fixed<const R extends readonly Rate[]>(...rates: R extends readonly [] ? [Rate] : R): FixedRule;
export function fixed(...given: readonly (Rate | FixedOptions)[]): FixedRule {
  const [windows, options] = split<FixedOptions>(given);
  known("fixed()", options, ["anchored", "cost", "force", "name", "unit"]);
  const { anchored = false, force = false } = options;
  return { kind: "fixed", windows, anchored, force, ...common(options) };
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
  const [, limit, length = ""] = (typeof rate === "string" && RATE.exec(rate)) || [];
  const period = PERIOD.exec(length)?.[1]?.toLowerCase() as Period | undefined;
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
    ...common(options),
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
  if (period * 1000 > LONGEST_MS) {
    throw new RangeError(`the window of a throttle is at most 2147483647 seconds in whole ones, not ${show(rate)}`);
  }
  if (count > period * 1e9) throw new RangeError(`${show(rate)} is more than one unit a nanosecond`);
  const burst = integer("burst", options.burst ?? limit - 1, 0, MOST - 1);
  return { kind: "throttle", burst, count, period, ...common(options) };
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
    ...common({ unit: "concurrent-requests", ...options }),
  };
}

function readRate(rate: Rate): Window[] {
  if (Array.isArray(rate) && rate.length === 2) {
    const [limit, length] = rate as [number, number];
    return [{ limit: integer("the limit", limit, 0), windowMs: milliseconds(String(length), 1000, length) }];
  }
  if (typeof rate !== "string") throw notARate(rate);
  return rate.split(",").map((text) => {
    const [, limit, length = ""] = RATE.exec(text) ?? [];
    const windowMs = readLength(length, text.trim());
    if (windowMs === undefined) throw notARate(text.trim() === "" ? rate : text);
    return { limit: integer("the limit", Number(limit?.replaceAll("_", "")), 0), windowMs };
  });
}

/** A limit, and what follows it. Of ASCII alone, as in every language: \s takes other white space, too. */
const RATE = /^[ \t\n\r\f\v]*([0-9]+(?:_[0-9]+)*)(?:[ \t\n\r\f\v]*\/|[ \t\n\r\f\v]+per(?=[ \t\n\r\f\v]))(.*)$/is;
const PERIOD = /^[ \t\n\r\f\v]*(day|week|month|year)s?[ \t\n\r\f\v]*$/i;

function notARate(given: unknown): RangeError {
  return new RangeError(`${show(given)} is not a rate such as "100/minute" or [100, 60]`);
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

/** What rules of all kinds may have, of those that are given. */
function common({ cost, name, unit }: Omit<ThrottleOptions, "burst">): Omit<ThrottleOptions, "burst"> {
  for (const [what, text] of Object.entries({ name, unit })) {
    if (text !== undefined && !/^[\x20-\x7e]+$/.test(text)) {
      throw new RangeError(`the ${what} of a policy is printable ASCII, not ${show(text)}`);
    }
  }
  return {
    ...(cost !== undefined && { cost: integer("cost", cost, 0) }),
    ...(name !== undefined && { name }),
    ...(unit !== undefined && { unit }),
  };
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}

/** The checks of what users give: numbers, lengths of time, names. */

import { inspect } from "node:util";
import { checkedWord, type Word } from "./keys.js";

/**
 * A length of time: seconds as a number (at most three decimal places), or text such as `"10s"`, `"2 minutes"`,
 * `"250ms"`, `"hour"`.
 */
export type Duration = number | string;

const UNITS = new Map(
  Object.entries({
    "ms millisecond milliseconds": 1,
    "s sec secs second seconds": 1000,
    "m min mins minute minutes": 60_000,
    "h hr hrs hour hours": 3_600_000,
    "d day days": 86_400_000,
    "w week weeks": 604_800_000,
  }).flatMap(([names, ms]) => names.split(" ").map((name) => [name, ms] as const)),
);
/** 2^53 − 1. */
export const MOST = Number.MAX_SAFE_INTEGER;
/** The longest window there is, 68 years. */
export const LONGEST_MS = 2_147_483_647_000;

/** Of ASCII alone, as in every language: \s takes other white space, too. */
const DURATION = /^[ \t\n\r\f\v]*([0-9]+(?:\.[0-9]{1,3})?)?[ \t\n\r\f\v]*([a-z]+)[ \t\n\r\f\v]*$/i;

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
  const ms = typeof duration === "string" ? readLength(duration) : undefined;
  if (ms !== undefined) return ms;
  throw new RangeError(`${show(duration)} is not a length of time such as 60, "10s" or "2 minutes"`);
}

/** Milliseconds of a length of time in text; `undefined` of another text. `given` is what an error shows. */
export function readLength(text: string, given = text): number | undefined {
  const [, number = "1", name = ""] = DURATION.exec(text) ?? [];
  const unit = UNITS.get(name.toLowerCase());
  return unit === undefined ? undefined : milliseconds(number, unit, given);
}

/** A length in seconds as the commands take it: shortest decimal, at most three places. */
export function seconds(ms: number): string {
  return String(ms / 1000);
}

/** A decimal number of units in whole milliseconds, without rounding. */
export function milliseconds(decimal: string, unit: number, given: unknown): number {
  const [whole = "", places = ""] = decimal.split(".");
  const thousandths = Number(whole + places.padEnd(3, "0"));
  const ms = (thousandths * unit) / 1000;
  if (!/^[0-9]+$/.test(whole) || !/^[0-9]{0,3}$/.test(places) || !Number.isInteger(ms) || ms < 1 || ms > LONGEST_MS) {
    throw new RangeError(
      `a length of time is a whole number of milliseconds from 0.001 to 2147483647 seconds, not ${show(given)}`,
    );
  }
  return ms;
}

export function holding(holder: Word | undefined): Word {
  if (holder === undefined || holder.length === 0) throw new TypeError("a lease needs a holder");
  return checkedWord("a holder", holder);
}

export function integer(what: string, value: number | undefined, least: number, most = MOST): number {
  if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) return value as number;
  throw new RangeError(`${what} must be an integer from ${least} to ${most}, not ${show(value)}`);
}

/** A choice among names, or a TypeError that has them; `undefined` stays. */
export function oneOf<T extends string, U extends T | undefined>(what: string, value: U, names: readonly T[]): U {
  if (value === undefined || names.includes(value)) return value;
  const list = names.map((name) => JSON.stringify(name));
  throw new TypeError(`${what} must be ${list.slice(0, -1).join(", ")} or ${list.at(-1)}, not ${show(value)}`);
}

/** A value in the text of an error: of an object the kind alone, since a client or its options have a password. */
export function show(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value) : inspect(value, { depth: Array.isArray(value) ? 0 : -1 });
}

/** Of a timer of this platform. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

export function duration(what: string, ms: number): number {
  if (typeof ms === "number" && ms > 0 && ms <= LONGEST_TIMER_MS) return ms;
  throw new RangeError(
    `${what} must be a number of milliseconds above 0 and up to ${LONGEST_TIMER_MS}, not ${String(ms)}`,
  );
}

/** How many milliseconds are left of a time that begins now. */
export function countdown(timeout: number): () => number {
  if (typeof timeout !== "number" || !(timeout >= 0)) {
    throw new RangeError(`timeout must be a number of milliseconds from 0, not ${String(timeout)}`);
  }
  const deadline = performance.now() + timeout;
  return () => deadline - performance.now();
}

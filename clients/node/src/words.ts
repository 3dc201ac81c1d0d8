/** What rules are to the commands, the keys and the memory of this package, and the checks of what users give. */

import type { Asking } from "./asking.js";
import { periodEnd } from "./calendar.js";
import { checkedWord, type Word } from "./keys.js";
import type { Duration, Rule, Window } from "./rules.js";
import type { RuleCommand } from "./server.js";

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

/**
 * The words of a rule as its command takes them behind the key, but for what a call says instead. `least` is the smallest
 * cost that the command takes. A sliding rule always sends a cost, which makes the server store the log in its compact form.
 */
export function words(rule: Rule, overrides: Asking = {}, least: 0 | 1 = 1): Word[] {
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

/** A rule that is not forced, and of one of the kinds that something takes. */
export function ofKind<K extends Rule["kind"]>(what: string, rule: Rule, ...kinds: K[]): Extract<Rule, { kind: K }> {
  if (!kinds.includes(checked(rule).kind as K)) {
    throw new TypeError(`${what} is made by ${kinds.join("() or ")}(), and not by ${rule.kind}()`);
  }
  if (isForced(rule, undefined)) throw new TypeError(`${what} cannot be forced`);
  return rule as Extract<Rule, { kind: K }>;
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

export function describe(rule: Rule): string {
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

export function checked<R extends Rule>(rule: R): R {
  if (typeof rule === "object" && rule !== null && KINDS.has(rule.kind)) return rule;
  throw new TypeError(
    `a rule is made by sliding(), fixed(), calendar(), throttle() or lease(), and is not ${show(rule)}`,
  );
}

const KINDS = new Set(["sliding", "fixed", "calendar", "throttle", "lease"]);

export function commandOf(rule: Rule): RuleCommand {
  const { kind } = checked(rule);
  return kind === "lease" ? "acquire" : kind === "calendar" ? "fixed" : kind;
}

export function keyword(rule: Rule): string {
  return commandOf(rule).toUpperCase();
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

export function show(value: unknown): string {
  const isNumber = typeof value === "number" || typeof value === "bigint";
  return isNumber ? String(value) : (JSON.stringify(value) ?? String(value));
}

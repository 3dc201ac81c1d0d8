/** What rules are to the commands, the keys and the memory of this package, and the checks of what users give. */

import type { Asking } from "./asking.js";
import { periodEnd } from "./calendar.js";
import { checkedWord, type Word } from "./keys.js";
import type {
  CalendarRule,
  Duration,
  FixedRule,
  LeaseRule,
  Rule,
  SlidingRule,
  TurnRule,
  UnitRule,
  Window,
} from "./rules.js";

export const UNITS: ReadonlyMap<string, number> = new Map(
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
/** 2^53 − 1. */
export const MOST = Number.MAX_SAFE_INTEGER;
const LONGEST_MS = 2_147_483_647_000;

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

/** What a call says instead of the rule; `at` is the unix time in milliseconds whose period a calendar counts in, else now. */
type Overrides = Pick<Asking, "cost" | "force" | "holder" | "within" | "hold"> & { readonly at?: number | undefined };

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

export function counters(rule: FixedRule | CalendarRule): string[] {
  if (rule.kind === "calendar") return [`@${periodEnd(rule, Date.now())}`];
  return rule.windows.map(({ windowMs }) => seconds(windowMs));
}

export function reservable(rule: Rule): UnitRule {
  const { kind } = checked(rule);
  if (kind === "throttle" || kind === "lease") {
    throw new TypeError(`a reservation takes a sliding, a fixed or a calendar rule, and not a ${kind}`);
  }
  if ((rule as UnitRule).force) throw new TypeError("a reservation cannot be forced");
  return rule as UnitRule;
}

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

export function checked<R extends Rule>(rule: R): R {
  if (typeof rule === "object" && rule !== null && KINDS.has(rule.kind)) return rule;
  throw new TypeError(
    `a rule is made by sliding(), fixed(), calendar(), throttle() or lease(), and is not ${show(rule)}`,
  );
}

export function checkedLease(rule: LeaseRule): LeaseRule {
  if (checked<Rule>(rule).kind === "lease") return rule;
  throw new TypeError(`a lease is made by lease(), and not by ${(rule as Rule).kind}()`);
}

const KINDS = new Set(["sliding", "fixed", "calendar", "throttle", "lease"]);

export function commandOf(rule: Rule): "sliding" | "fixed" | "throttle" | "acquire" {
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
      `a window is a whole number of milliseconds from 0.001 to 2147483647 seconds, not ${show(given)}`,
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

/** What rules are to the commands, the keys and the memory of this package. */

import type { Asked, Hold } from "./asking.js";
import { periodEnd } from "./calendar.js";
import { holding, integer, seconds, show } from "./checks.js";
import type { Word } from "./keys.js";
import type { Rule, Window } from "./rules.js";
import type { RuleCommand } from "./server.js";

/** What a call says instead of its rule, or beside it. */
interface Overrides extends Pick<Asked, "cost" | "force" | "holder"> {
  /** The unix time in milliseconds whose period a calendar counts in, else now. */
  readonly at?: number | undefined;
  readonly within?: number | undefined;
  readonly hold?: Hold | undefined;
}

/**
 * The words of a rule as its command takes them behind the key, but for what a call says instead. `least` is the smallest
 * cost that the command takes. A sliding rule always sends a cost, which makes the server store the log in its compact form.
 */
export function words(rule: Rule, overrides: Overrides, least: 0 | 1 = 1): Word[] {
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

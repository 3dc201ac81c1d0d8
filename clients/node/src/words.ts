/** How a limiter is asked within this package, and what rules are to the commands, the keys and the memory. */

import { periodEnd } from "./calendar.js";
import { countdown, holding, integer, seconds, show } from "./checks.js";
import { isEnded } from "./errors.js";
import type { Word } from "./keys.js";
import type { WhenUnavailable } from "./options.js";
import type { Rule, Window } from "./rules.js";
import type { Command, RuleCommand } from "./server.js";

/** Who holds the units of a reservation, and in which periods of a calendar. */
export interface Hold {
  readonly holder: string;
  readonly leaseMs: number;
  /** The time whose periods it counts in, once it was sent. */
  at?: number;
  /** Whether it has been taken: then it stays in its periods. */
  renews?: boolean;
}

/** A key and rule of a decision, as they are asked. */
export interface Asked {
  readonly key: Word;
  readonly rule: Rule;
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: Word | undefined;
  /** Units to hold until they are settled. */
  readonly reserve?: number | undefined;
  /** Whether a denial may be remembered where that is done; unless given, it may. */
  readonly remembers?: boolean | undefined;
}

/** How a limiter is asked, by an adapter where that differs from the limiter's options. */
export interface Asking {
  readonly timeout?: number | undefined;
  readonly whenUnavailable?: WhenUnavailable | undefined;
  /** What is done when the server is unavailable where neither that nor the limiter says it. */
  readonly habit?: WhenUnavailable | undefined;
  /** Whether denials are remembered. */
  readonly denyCache?: boolean | undefined;
  /** Take a turn that comes within this number of milliseconds. */
  readonly within?: number | undefined;
  readonly hold?: Hold | undefined;
  /** Ask what the answer would be, and change nothing. */
  readonly peek?: boolean | undefined;
  /** Ask as of several keys, also of one. */
  readonly all?: boolean | undefined;
  /** Called where the reply is lost, so that something may have been taken. */
  readonly lost?: (() => unknown) | undefined;
}

/** The units that a request weighs where nothing is sent of them. */
export function unitsOf({ cost, rule }: Asked): number {
  return cost ?? (rule.kind === "lease" ? undefined : rule.cost) ?? 1;
}

/** What a call says instead of its rule, or beside it: `at` is the time whose period a calendar counts in, else now. */
type At = { readonly at?: number | undefined };
type Overrides = Pick<Asked, "cost" | "force" | "holder"> & Pick<Asking, "within" | "hold"> & At;

/**
 * The words of a rule as its command takes them behind the key, but for what a call says instead. `least` is the smallest
 * cost that the command takes. A sliding rule always sends a cost, which makes the server store the log in its compact form.
 */
function words(rule: Rule, overrides: Overrides, least: 0 | 1 = 1): Word[] {
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

/** The words by which a reset finds the counters of a rule. */
export function countersOf(rule: Rule): string[] {
  // A hold that stayed would later give back units of requests that came after the reset.
  if (rule.kind === "calendar") return [`@${periodEnd(rule, Date.now())}`, "HOLD"];
  return rule.kind === "fixed" ? [...rule.windows.map(({ windowMs }) => seconds(windowMs)), "HOLD"] : [];
}

/**
 * Sends a call in the periods of now, and once more where one of them has ended by the server's clock: then in those of the
 * earliest end. A reservation is renewed and settled in the periods in which it was made.
 */
export function inPeriod(
  asked: readonly Asked[],
  send: (at: number | undefined, timeout: number) => Promise<unknown>,
  timeout: number,
  hold: Hold | undefined,
): Promise<unknown> {
  const calendars = asked.map(({ rule }) => rule).filter((rule) => rule.kind === "calendar");
  if (calendars.length === 0) return send(undefined, timeout);
  const left = countdown(timeout);
  const at = hold?.at ?? Date.now();
  if (hold) hold.at = at;
  return send(at, timeout).catch((error) => {
    if (!isEnded(error) || hold?.renews) throw error;
    const next = Math.min(...calendars.map((rule) => periodEnd(rule, at)));
    if (hold) hold.at = next;
    return send(next, Math.max(1, left()));
  });
}

/** A rule in words, with those that tell its kind in front. */
export function named(rule: Rule, overrides: Overrides, least?: 0 | 1): Word[] {
  return [commandOf(rule).toUpperCase(), ...words(rule, overrides, least)];
}

/** The words of a call behind its keys. */
export function wordsOf(command: Command, asked: readonly Asked[], { hold, within }: Asking, at?: number): Word[] {
  const isNamed = command === "all" || command === "peek";
  const list = asked.flatMap(({ rule, cost, force, holder, reserve }) => {
    const held = reserve === undefined ? undefined : hold;
    const least = command === "peek" || (command === "all" && !held) ? 0 : 1;
    return (isNamed ? named : words)(rule, { cost: reserve ?? cost, force, holder, hold: held, at, within }, least);
  });
  return [...list, command !== "all" && repliesEach(asked[0] as Asked) ? "EACH" : "FULL"];
}

/** Whether a call asks for EACH: the server gives it for several windows that are not forced. */
export function repliesEach({ rule, force }: Asked): boolean {
  return (rule.kind === "sliding" || rule.kind === "fixed") && rule.windows.length > 1 && !isForced(rule, force);
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
  if (rule.kind === "throttle") return `throttle-${rule.burst}-${rule.count}/${rule.period}s`;
  if (rule.kind === "lease") return `lease-${rule.limit}/${seconds(rule.leaseMs)}s`;
  if (rule.kind === "calendar") {
    const { limit, period, zone, starts } = rule;
    return `calendar-${limit}/${period} ${zone}${starts === 1 ? "" : ` ${starts}`}`;
  }
  const kind = rule.kind === "fixed" && rule.anchored ? "anchored" : rule.kind;
  return `${kind}-${rule.windows.map(({ limit, windowMs }) => `${limit}/${seconds(windowMs)}s`).join(",")}`;
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

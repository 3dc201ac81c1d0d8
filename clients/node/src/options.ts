/** What a limiter and its calls are told, and the checks of it. */

import { randomBytes } from "node:crypto";
import { RESERVATION } from "./defaults.js";
import type { Word } from "./keys.js";
import type { Source } from "./result.js";
import {
  type Duration,
  type HeldLeaseRule,
  type LeaseRule,
  type Rule,
  readDuration,
  type SlidingRule,
  type ThrottleRule,
  type UnitRule,
} from "./rules.js";
import type { Call, Mode } from "./server.js";
import { LONGEST_TIMER_MS } from "./waiting.js";

/** What a limiter does when the server is unavailable: let all through, reject with an error, or count in this process. */
export type WhenUnavailable = "open" | "closed" | "local";

/** Where a limiter writes a line; `console` unless given. */
export interface Logger {
  warn(line: string): void;
}

/** A decision, for {@link LimiterOptions.onDecision}. */
export interface Decision {
  /** The limiter's name. */
  readonly limiter: string;
  readonly command: Call["name"];
  /** The key as the caller gave it; of several the first, and `keys` are all. */
  readonly key: Word;
  readonly keys: readonly Word[];
  /** The rule of the first key. */
  readonly rule: Rule;
  readonly allowed: boolean;
  readonly source: Source;
  readonly durationMs: number;
}

/** How many decisions a limiter made, by whom. */
export interface Statistics {
  readonly allowed: number;
  readonly denied: number;
  /** Of the denied, those that a remembered denial decided. */
  readonly deniedFromMemory: number;
  /** Calls that found the server unavailable. */
  readonly unavailable: number;
}

export interface LimiterOptions {
  /** Put in front of every key, behind a `keyPrefix` of the client. */
  readonly prefix?: string;
  /**
   * How the commands are sent: `module` (`RL.*`), `functions` (`FCALL`, the library is loaded where it is missing),
   * `script` (`EVALSHA`), or `auto` for the first of them that the server takes. By default `auto`.
   */
  readonly mode?: Mode | "auto";
  /** For how many milliseconds a call waits for its reply, unless it says otherwise. By default 1000; in the adapters at most 250. */
  readonly timeout?: number;
  /**
   * What is done when the server is unavailable: `closed` rejects with an {@link UnavailableError} (middleware: status 503),
   * `open` allows, `local` counts in the memory of this process. By default `hit`, `peek` and stores are `closed`, and
   * middleware is `open`. A lease is never allowed without the server.
   */
  readonly whenUnavailable?: WhenUnavailable;
  /** Among how many processes `local` divides the limits. By default 1. */
  readonly processes?: number;
  /** What log lines and the hook call the limiter. By default the prefix. */
  readonly name?: string;
  readonly logger?: Logger;
  /** Called with every decision. What it returns is not waited for, and its errors are logged. */
  readonly onDecision?: (decision: Decision) => unknown;
}

/** What every call may say. */
export interface CallOptions {
  /** For how many milliseconds the call waits for its reply; the limiter's `timeout` unless given. */
  readonly timeout?: number;
  /** Ends the call with its reason. The command may have been sent: what a request has counted stays charged. */
  readonly signal?: AbortSignal;
}

export interface AcquireOptions extends CallOptions {
  /** Who asks for the lease. */
  readonly holder?: Word;
}

export interface TurnOptions extends CallOptions {
  /** Units that this request weighs: an integer from 1, and of a peek from 0, which shows the state as it is. */
  readonly cost?: number;
}

interface WindowHitOptions extends TurnOptions {
  /** Count the request whether it fits or not. */
  readonly force?: boolean;
}

/** What a call may say instead of its rule. */
export type HitOptions<R extends Rule = SlidingRule> = R extends LeaseRule
  ? AcquireOptions
  : R extends ThrottleRule
    ? TurnOptions
    : WindowHitOptions;

/** What a peek may say. A lease has no cost; without a `holder` it is somebody new who asks. */
export type PeekOptions<R extends Rule = SlidingRule> = R extends LeaseRule ? AcquireOptions : TurnOptions;

export interface RefundOptions extends CallOptions {
  /** Units to give back; as many as the rule takes unless given. */
  readonly cost?: number;
  /** Give back only what was taken at this time: a result's `atMs`. */
  readonly atMs?: number;
}

interface Waiting {
  /** For how many milliseconds to wait; as long as it takes unless given. */
  readonly timeout?: number;
  /** Ends the wait with its reason, and gives the turn or the place back. */
  readonly signal?: AbortSignal;
}

/** What a wait may say, of a lease with a holder, of other rules with a cost. */
export type WaitOptions<R extends Rule = SlidingRule> = Waiting &
  (R extends LeaseRule ? { readonly holder?: Word } : { readonly cost?: number });

export interface HoldOptions {
  /** Who holds the lease; a random UUID unless given. */
  readonly holder?: Word;
  /** Renew the lease by itself, each time a third of it has passed. By default true. */
  readonly renew?: boolean;
  /** For how many milliseconds to wait for a place. By default 0: the first answer counts. */
  readonly timeout?: number;
  /** Ends the wait for a place with its reason. */
  readonly signal?: AbortSignal;
}

type Without<Names extends string> = { readonly [Name in Names]?: never };
type At<R extends Rule> = { readonly key: Word; readonly rule: R };
/** Units; 0 checks whether there is room and takes none. */
type Weighing = { readonly cost?: number };

/** One key and rule of {@link Limiter.all}. A lease needs to know who holds it. */
export type Demand =
  | (At<UnitRule> & Weighing & { readonly force?: boolean } & Without<"holder">)
  | (At<ThrottleRule> & Weighing & Without<"force" | "holder">)
  | (At<LeaseRule> & { readonly holder: Word } & Without<"cost" | "force">)
  | (At<HeldLeaseRule> & { readonly holder?: Word } & Without<"cost" | "force">);

/** One key and rule of {@link Limiter.reserveAll}: `reserve` is the number of units to hold, from 1. */
export type ReservedDemand =
  | (Demand & { readonly reserve?: undefined })
  | (At<UnitRule> & { readonly reserve: number } & Without<"cost" | "force" | "holder">);

export interface ReserveOptions extends CallOptions {
  /** For how long units are held that nobody settles or renews: seconds, or text such as `"2 minutes"`. By default 60. */
  readonly lease?: Duration;
}

/** Who holds the units of a reservation, and in which periods of a calendar. */
export interface Hold {
  readonly holder: string;
  readonly leaseMs: number;
  /** The time whose periods it counts in, once it was sent. */
  at?: number;
  /** Whether it has been taken: then it stays in its periods. */
  renews?: boolean;
}

/** How a reservation is asked for. */
export interface Reserving {
  readonly hold: Hold;
  readonly timeout?: number;
  readonly signal?: AbortSignal;
}

/** The options of a reservation, with a holder that no other one has. */
export function reserving({ lease = RESERVATION.lease / 1000, ...options }: ReserveOptions = {}): Reserving {
  const holder = randomBytes(16).toString("hex");
  try {
    return { ...options, hold: { holder, leaseMs: readDuration(lease) } };
  } catch {
    throw new RangeError(`the lease of a reservation is from 0.001 to 2147483647 seconds, not ${String(lease)}`);
  }
}

/** One rule that a request is asked under. */
export type RequestDemand = Demand & {
  /** Whether a denial by this rule may be remembered; unless given, it may. */
  readonly remembers?: boolean;
};

/** How a limiter is asked, by an adapter where that differs from the limiter's options. */
export interface Asking {
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: Word | undefined;
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
}

/** A time that a timer takes. */
export function duration(what: string, ms: number): number {
  if (typeof ms === "number" && ms > 0 && ms <= LONGEST_TIMER_MS) return ms;
  throw new RangeError(
    `${what} must be a number of milliseconds above 0 and up to ${LONGEST_TIMER_MS}, not ${String(ms)}`,
  );
}

export function checkedPolicy(policy: WhenUnavailable): WhenUnavailable {
  if (["open", "closed", "local"].includes(policy)) return policy;
  throw new TypeError(`whenUnavailable must be "open", "closed" or "local", not ${JSON.stringify(policy)}`);
}

/** Those of the limiter, of which none is misspelt. */
export const OPTIONS = "prefix mode timeout whenUnavailable processes name logger onDecision".split(" ");

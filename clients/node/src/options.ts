/** What a limiter and its calls may be told. */

import type { Duration } from "./checks.js";
import type { Word } from "./keys.js";
import type { LeaseOptions } from "./lease.js";
import type { HeldLeaseRule, LeaseRule, Rule, SlidingRule, ThrottleRule, UnitRule } from "./rules.js";
import type { Command, Mode } from "./server.js";

/** What a limiter does when the server is unavailable: let all through, reject with an error, or count in this process. */
export type WhenUnavailable = "open" | "closed" | "local";

/** Where a limiter writes a line; `console` unless given. */
export interface Logger {
  warn(line: string): void;
}

/**
 * Who made a decision: the server; a denial that this process remembers; the limits of this process, while the server was
 * unavailable (`local`); or nobody, because the policy was `open`. Only the server has counted what `server` allowed.
 */
export type Source = "server" | "memory" | "local" | "open";

/** A decision, for {@link LimiterOptions.onDecision}. */
export interface Decision {
  readonly limiter: string;
  readonly command: Command;
  /** The key as the caller gave it; of several the first, and `keys` are all. */
  readonly key: Word;
  readonly keys: readonly Word[];
  /** The rule of the first key. */
  readonly rule: Rule;
  readonly allowed: boolean;
  readonly source: Source;
  readonly durationMs: number;
}

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

export interface CallOptions {
  /** For how many milliseconds the call waits for its reply; the limiter's `timeout` unless given. */
  readonly timeout?: number;
  /** Ends the call with its reason. The command may have been sent: what a request has counted stays charged. */
  readonly signal?: AbortSignal;
}

export interface AcquireOptions extends CallOptions {
  /** Who asks for the lease; of `acquire`, `hold` and `wait` a random UUID unless given. */
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

/** What a peek may say. A lease has no cost. */
export type PeekOptions<R extends Rule = SlidingRule> = R extends LeaseRule ? AcquireOptions : TurnOptions;

export interface RefundOptions extends CallOptions {
  /** Units to give back; as many as the rule takes unless given. */
  readonly cost?: number;
  /** Give back only what was taken at this time: a result's `atMs`. */
  readonly atMs?: number;
}

interface Waiting {
  /** For how many milliseconds to wait: as long as it takes unless given; of `hold` 0, so that the first answer counts. */
  readonly timeout?: number;
  /** Ends the wait with its reason, and gives the turn or the place back. */
  readonly signal?: AbortSignal;
}

/** What a wait may say, of a lease with a holder, of other rules with a cost. */
export type WaitOptions<R extends Rule = SlidingRule> = Waiting &
  (R extends LeaseRule ? { readonly holder?: Word } : { readonly cost?: number });

export type HoldOptions = Waiting & Pick<AcquireOptions, "holder"> & Pick<LeaseOptions, "renew">;

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

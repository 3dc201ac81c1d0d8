/** How a limiter is asked within this package. */

import { randomBytes } from "node:crypto";
import { readDuration } from "./checks.js";
import { RESERVATION } from "./defaults.js";
import type { Word } from "./keys.js";
import type { ReserveOptions, WhenUnavailable } from "./options.js";
import type { Rule } from "./rules.js";

/** Who holds the units of a reservation, and in which periods of a calendar. */
export interface Hold {
  readonly holder: string;
  readonly leaseMs: number;
  /** The time whose periods it counts in, once it was sent. */
  at?: number;
  /** Whether it has been taken: then it stays in its periods. */
  renews?: boolean;
}

/** The options of a reservation, with a holder that no other one has. */
export function reserving({ lease = RESERVATION.lease / 1000, ...options }: ReserveOptions = {}) {
  const holder = randomBytes(16).toString("hex");
  try {
    const hold: Hold = { holder, leaseMs: readDuration(lease) };
    return { ...options, hold };
  } catch {
    throw new RangeError(`the lease of a reservation is from 0.001 to 2147483647 seconds, not ${String(lease)}`);
  }
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

export const POLICIES: readonly WhenUnavailable[] = ["open", "closed", "local"];

/** Those of the limiter, of which none is misspelt. */
export const OPTIONS = "prefix mode timeout whenUnavailable processes name logger onDecision".split(" ");

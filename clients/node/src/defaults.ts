/** The defaults and constants that a user can meet, the same in every language: ../../cases/defaults.json. Times are in milliseconds. */

export const LIMITER = { name: "redis-rl", prefix: "", mode: "auto", timeout: 1000 } as const;
/** Of middleware and stores. A store keeps its framework's habit where the server is unavailable. */
export const ADAPTER = { prefix: "rl:", timeout: 250, whenUnavailable: "open", ipv6Prefix: 64 } as const;
/** Of what middleware answers in the application's place. */
export const STATUS = { denied: 429, unavailable: 503, withoutIdentity: 403 } as const;
export const DENY_CACHE = { entries: 10_000, bytes: 4 * 1024 * 1024, believed: 1000 } as const;
/** An identity of more bytes than `longest` is shortened to those that it begins with, the mark and its hash. */
export const IDENTITY = { longest: 512, kept: 64, mark: "%sha256:" } as const;
/** Of the policy `local`. The oldest make room. */
export const LOCAL = { counters: 50_000 } as const;
/** For how long a node that was unavailable is not asked. */
export const BREAKER_PAUSE = 1000;
export const MODES = ["module", "functions", "script"] as const;
/** How often a node without the module is asked for it. */
export const PROBE_AGAIN = 60_000;
/** Of `wait` and `hold`. */
export const WAITING = {
  longestTurn: 3_600_000,
  firstPoll: 20,
  longestPoll: 500,
  outagePoll: 1000,
  lastCallShare: 0.1,
} as const;
export const RESERVATION = { lease: 60_000, remembered: 60_000 } as const;
/** How often a lease or a reservation is renewed in its time. */
export const RENEWALS = 3;
export const POLICIES = ["open", "closed", "local"] as const;
/** Those of the limiter, of which none is misspelt. */
export const OPTIONS = "prefix mode timeout whenUnavailable processes name logger onDecision".split(" ");

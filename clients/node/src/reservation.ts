/** A budget whose cost is known when the work is over: units are held meanwhile, and settled once. */

import { randomBytes } from "node:crypto";
import { integer, readDuration } from "./checks.js";
import { RESERVATION } from "./defaults.js";
import { isEnded, isSettled, LostReplyError, UnavailableError } from "./errors.js";
import type { Word } from "./keys.js";
import { Lease } from "./lease.js";
import type { ReserveOptions } from "./options.js";
import { type Result, UnreadableReplyError } from "./result.js";
import type { UnitRule } from "./rules.js";
import type { Hold } from "./words.js";

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

export interface Part {
  readonly key: Word;
  readonly rule: UnitRule;
  readonly units: number;
}

/** Work that lasts as long as its reservation is held. */
export type Work<T> = (reservation: Reservation) => Promise<T> | T;

interface Keeper {
  settle(part: Part, actual: number): Promise<unknown>;
  renew(): Promise<{ readonly allowed: boolean }>;
  warn(line: string): void;
  /** For how many milliseconds a settlement waits for its reply. */
  readonly timeout: number;
  /** By `performance.now()`, before the call was sent. */
  readonly takenAt: number;
  readonly renews: boolean;
}

interface Account extends Part {
  /** What is to be charged, once that was said. */
  wanted?: number;
  settled?: number;
  /** When a settlement was sent first of which no reply came. */
  lostAt?: number;
}

/** Units that are held, by {@link Limiter.reserve} or {@link Limiter.reserveAll}. */
export class Reservation {
  /** The decision. Where not the server made it (see `source`), nothing was counted there. */
  readonly result: Result;
  readonly #keeper: Keeper;
  readonly #accounts: readonly Account[];
  readonly #rememberedMs: number;
  readonly #lease: Lease<{ readonly leaseMs: number }>;

  /** @internal */
  constructor(keeper: Keeper, parts: readonly Part[], result: Result, hold: Hold) {
    this.result = result;
    this.#keeper = keeper;
    this.#accounts = parts.map((part) => ({ ...part }));
    this.#rememberedMs = Math.max(hold.leaseMs, RESERVATION.remembered);
    const leases = { acquire: () => this.#renewed(), release: async () => 0, warn: keeper.warn };
    const renew = keeper.renews && result.source === "server";
    this.#lease = new Lease(leases, (parts[0] as Part).key, hold, hold.holder, { takenAt: keeper.takenAt, renew });
    if (result.source !== "server") void this.#lease.end();
  }

  /** Whether the units are no longer held, because they could not be renewed in time. They can still be settled. */
  get lost(): boolean {
    return this.#lease.lost;
  }

  /** Aborts when the units are {@link lost}. */
  get signal(): AbortSignal {
    return this.#lease.signal;
  }

  /**
   * Puts the real number of units in the place of those that were reserved, whether they fit or not; of a reservation of
   * several keys one number for all, or one for each key. May be called again after any error, and charges once.
   *
   * Resolves with whether the server has confirmed it: `false` where it is unavailable, which is logged, and where it counted
   * nothing, because an outage let the request through.
   *
   * @throws Error if the reservation was settled with another number, or so long after a call without reply that the server may
   * have forgotten whether it was settled.
   */
  async settle(actual: number | Readonly<Record<string, number>>): Promise<boolean> {
    const figures = this.#accounts.map(({ key }) =>
      integer("actual", typeof actual === "number" ? actual : actual[String(key)], 0),
    );
    if (this.result.source !== "server") return false;
    const settling = this.#accounts.map((account, i) => this.#settled(account, figures[i] as number));
    await Promise.allSettled(settling);
    return (await Promise.all(settling)).every(Boolean);
  }

  /** Gives everything back: `settle(0)`. */
  cancel(): Promise<boolean> {
    return this.settle(0);
  }

  /** Does the work, and accounts for what it leaves. @internal */
  async during<T>(work: Work<T>): Promise<T> {
    let failed = true;
    try {
      const made = await work(this);
      failed = false;
      return made;
    } finally {
      const open = this.result.source === "server" ? this.#accounts.filter(({ settled }) => settled === undefined) : [];
      // A settlement that was not confirmed is sent once more. Where there was none, the work decides.
      const settled = open.map((account) =>
        this.#settled(account, account.wanted ?? (failed ? 0 : account.units)).catch((error) => {
          this.#keeper.warn(`a reservation could not be settled: ${(error as Error).message}`);
        }),
      );
      await Promise.all(settled);
      await this.#lease.end();
    }
  }

  async #settled(account: Account, actual: number): Promise<boolean> {
    if (account.settled !== undefined) {
      if (account.settled !== actual) throw settledOtherwise(account.key);
      return true;
    }
    const now = performance.now();
    if (account.lostAt !== undefined && now - account.lostAt > this.#rememberedMs - this.#keeper.timeout) {
      throw new Error(
        `It is unknown whether the reservation at ${account.key} was settled: the server may have forgotten`,
      );
    }
    account.wanted = actual;
    let reply: unknown;
    try {
      reply = await this.#keeper.settle(account, actual);
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      if (error instanceof LostReplyError) account.lostAt ??= now;
      this.#keeper.warn(`a reservation is not settled yet: ${error.message}`);
      return false;
    }
    const [outcome, ...more] = Array.isArray(reply) && reply.every(Number.isInteger) ? reply : [];
    if (more.length !== 2 || outcome < 0 || outcome > 3) throw new UnreadableReplyError(reply, "a settlement");
    if (outcome === 0) throw settledOtherwise(account.key);
    account.settled = actual;
    if (this.#accounts.every(({ settled }) => settled !== undefined)) void this.#lease.end();
    return true;
  }

  /** A holder that is settled, or whose period has ended, has nothing to renew. */
  async #renewed(): Promise<{ readonly allowed: boolean }> {
    try {
      return await this.#keeper.renew();
    } catch (error) {
      if (!isSettled(error) && !isEnded(error)) throw error;
      void this.#lease.end();
      return { allowed: true };
    }
  }
}

function settledOtherwise(key: Word): Error {
  return new Error(`The reservation at ${String(key)} is settled already, with another number of units`);
}

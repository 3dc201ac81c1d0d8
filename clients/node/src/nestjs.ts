/** A storage for @nestjs/throttler, version 6, and a guard that asks all throttlers of a request at once. */

import { type ExecutionContext, ForbiddenException, ServiceUnavailableException } from "@nestjs/common";
import { ThrottlerGuard, type ThrottlerRequest, type ThrottlerStorage } from "@nestjs/throttler";
import { type AdapterOptions, asking, identified, ruleOf } from "./adapter.js";
import { LONGEST_MS, seconds } from "./checks.js";
import { NoIdentityError, UnavailableError } from "./errors.js";
import { adapterKey, shortened } from "./identity.js";
import type { Limiter } from "./limiter.js";
import type { WindowResult } from "./result.js";
import type { Asked } from "./words.js";

/** What a guard is told: times are whole seconds, rounded up. */
export type ThrottlerRecord = Awaited<ReturnType<ThrottlerStorage["increment"]>>;

/** What one throttler asks for a request. Times are in milliseconds. */
export interface Throttling {
  readonly key: string;
  readonly ttl: number;
  readonly limit: number;
  readonly blockDuration: number;
  readonly name: string;
  /** Whom it counts, where that is known: the hash tag of the keys. */
  readonly tracker?: string;
}

/**
 * ```ts
 * ThrottlerModule.forRoot({
 *   throttlers: [{ ttl: seconds(60), limit: 10 }],
 *   storage: new NestThrottlerStorage(limiter),
 * });
 * ```
 *
 * A request is one decision over an exact sliding window. A denial starts a block of `blockDuration`: what is asked
 * meanwhile neither counts nor prolongs it, and its end gives the whole quota back. With a `blockDuration` of 0 or less a
 * denial lasts until the request fits.
 */
export class NestThrottlerStorage implements ThrottlerStorage {
  readonly #limiter: Limiter;
  readonly #options: AdapterOptions;
  readonly #asking: ReturnType<typeof asking>;

  constructor(limiter: Limiter, options: AdapterOptions = {}) {
    this.#limiter = limiter;
    this.#options = options;
    this.#asking = asking(limiter, options, "the storage", []);
  }

  async increment(...given: Parameters<ThrottlerStorage["increment"]>): Promise<ThrottlerRecord> {
    const [key, ttl, limit, blockDuration, name] = given;
    const [record] = await this.incrementAll([{ key, ttl, limit, blockDuration, name }]);
    return record as ThrottlerRecord;
  }

  /** One decision on a request of several throttlers: all of them count it, or none does. */
  async incrementAll(throttlings: readonly Throttling[]): Promise<ThrottlerRecord[]> {
    try {
      return await this.#decide(throttlings);
    } catch (error) {
      // Nest makes a 500 of every error that is not one of its own.
      if (error instanceof NoIdentityError) throw new ForbiddenException(error.message);
      if (!(error instanceof UnavailableError)) throw error;
      throw new ServiceUnavailableException("The rate limiter is not available", { cause: error });
    }
  }

  /** What a throttler asks: nothing of a request without identity, or without a limit, and of a block where a denial starts one. */
  #asked({ key, ttl, limit, blockDuration, name, tracker = key }: Throttling): { quota?: Asked; block?: Asked } {
    const isKnown = identified(key && tracker, this.#options.withoutIdentity);
    if (!isKnown || limit > Number.MAX_SAFE_INTEGER) return {};
    const policy = `${name}-${seconds(whole(ttl))}s${tracker === key ? "" : ` ${shortened(key)}`}`;
    const quotaKey = adapterKey(this.#options.prefix, policy, String(tracker));
    const quota = { key: quotaKey, rule: ruleOf("sliding", Math.max(0, Math.floor(limit)), whole(ttl)) };
    if (!(blockDuration > 0)) return { quota };
    const block = { key: `${quotaKey}:block`, rule: ruleOf("fixed", 1, whole(blockDuration)), cost: 0 };
    // A denial that starts a block is not remembered: the end of a short one gives the quota back before.
    return { quota: { ...quota, remembers: false }, block };
  }

  async #decide(throttlings: readonly Throttling[]): Promise<ThrottlerRecord[]> {
    const throttlers = throttlings.map((each) => this.#asked(each));
    const demands = throttlers.flatMap(({ block, quota }) => [block ?? [], quota ?? []].flat());
    if (demands.length === 0) return throttlings.map(({ ttl }) => passed(0, ttl));
    const result = await this.#limiter.ask(demands, this.#asking);
    const told = (demand: Asked): WindowResult | undefined => {
      const i = demands.indexOf(demand);
      // What is remembered is of one of them.
      return result.source !== "memory" ? result.each[i] : i === result.index ? result : undefined;
    };
    return Promise.all(
      throttlings.map(async ({ ttl, limit }, i) => {
        const { quota, block } = throttlers[i] ?? {};
        const blocked = block && told(block);
        if (blocked?.allowed === false) return denied(limit, ttl, blocked.retryAfterMs);
        const counted = quota && told(quota);
        if (!counted || counted.allowed) return passed(counted?.used ?? 0, counted?.resetAfterMs ?? ttl);
        return denied(limit, ttl, block ? await this.#blocked(quota, block, counted) : counted.retryAfterMs);
      }),
    );
  }

  /** Starts a block, unless another denial has done so at this moment. Resolves with how long it lasts. */
  async #blocked(quota: Asked, block: Asked, { retryAfterMs }: WindowResult) {
    try {
      const started = await this.#limiter.ask([{ key: block.key, rule: block.rule }], this.#asking);
      if (started.allowed && started.source === "server") await this.#limiter.reset(quota.key, undefined, this.#asking);
      return started.allowed ? started.windowMs : started.retryAfterMs;
    } catch (error) {
      // The request is still denied.
      if (error instanceof UnavailableError) return retryAfterMs;
      throw error;
    }
  }
}

/** Asks all throttlers of a request in one decision, and sends a plain `Retry-After`. It needs a {@link NestThrottlerStorage}. */
export class RlThrottlerGuard extends ThrottlerGuard {
  readonly #requests = new WeakMap<ExecutionContext, ThrottlerRequest[]>();

  override async onModuleInit(): Promise<void> {
    if (!(this.storageService instanceof NestThrottlerStorage)) {
      throw new TypeError("RlThrottlerGuard needs storage: new NestThrottlerStorage(limiter)");
    }
    await super.onModuleInit();
  }

  override async canActivate(context: ExecutionContext): Promise<boolean> {
    const requests: ThrottlerRequest[] = [];
    this.#requests.set(context, requests);
    return (await super.canActivate(context)) && (await this.#decide(context, requests));
  }

  protected override async handleRequest(request: ThrottlerRequest): Promise<boolean> {
    this.#requests.get(request.context)?.push(request);
    return true;
  }

  async #decide(context: ExecutionContext, requests: readonly ThrottlerRequest[]): Promise<boolean> {
    const { req, res } = this.getRequestResponse(context);
    const asked = requests.filter(({ throttler }) => {
      const ignored = throttler.ignoreUserAgents ?? this.commonOptions.ignoreUserAgents;
      return !Array.isArray(ignored) || !ignored.some((pattern) => pattern.test(req.headers?.["user-agent"]));
    });
    const throttlings = await Promise.all(
      asked.map(async ({ ttl, limit, blockDuration, throttler, getTracker, generateKey }) => {
        const { name = "default", setHeaders = this.commonOptions.setHeaders ?? true } = throttler;
        const tracker = (await getTracker(req, context)) ?? "";
        return { ttl, limit, blockDuration, name, tracker, key: generateKey(context, tracker, name), setHeaders };
      }),
    );
    const records = await (this.storageService as NestThrottlerStorage).incrementAll(throttlings);
    const told = throttlings.map((throttling, i) => ({ ...throttling, ...(records[i] as ThrottlerRecord) }));
    // What came by a WebSocket or GraphQL may have no HTTP response.
    const header = (name: string, value: number) => (res?.header ?? res?.setHeader)?.call(res, name, value);
    // All of them have to be over before the same request fits.
    const [longest] = told
      .filter(({ isBlocked }) => isBlocked)
      .sort((a, b) => b.timeToBlockExpire - a.timeToBlockExpire);
    if (longest) {
      if (longest.setHeaders) header("Retry-After", longest.timeToBlockExpire);
      await this.throwThrottlingException(context, longest);
    }
    for (const { setHeaders, limit, name, totalHits, timeToExpire } of told) {
      if (!setHeaders) continue;
      const suffix = name === "default" ? "" : `-${name}`;
      header(`${this.headerPrefix}-Limit${suffix}`, limit);
      header(`${this.headerPrefix}-Remaining${suffix}`, Math.max(0, limit - totalHits));
      header(`${this.headerPrefix}-Reset${suffix}`, timeToExpire);
    }
    return true;
  }
}

/** Whole milliseconds. What is not a length is refused where the rule is made. */
function whole(ms: number): number {
  return Math.min(Math.ceil(ms), LONGEST_MS);
}

function passed(totalHits: number, resetMs: number): ThrottlerRecord {
  return { totalHits, timeToExpire: Math.ceil(resetMs / 1000), isBlocked: false, timeToBlockExpire: 0 };
}

/** A request that never fits is told to wait for a window. */
function denied(limit: number, ttl: number, waitMs: number | undefined): ThrottlerRecord {
  const wait = Math.ceil((waitMs ?? ttl) / 1000);
  return { totalHits: limit + 1, timeToExpire: wait, isBlocked: true, timeToBlockExpire: wait };
}

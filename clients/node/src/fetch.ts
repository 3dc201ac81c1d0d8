/** A limit around a handler of Fetch's `Request`: Next.js, Remix, Bun, Deno and others. */

import { type GuardOptions, guard, type KeyOf, type Limits, responded } from "./guard.js";
import type { Limiter } from "./limiter.js";

export interface RateLimitOptions<Q extends Request>
  extends GuardOptions<Q, (request: Q) => Response | Promise<Response>> {
  /** Whom a request is counted for: a `Request` does not say which address it comes from. */
  readonly key: KeyOf<Q>;
  /** The template of the route, such as `GET /item/[id]`: a rule without a name then counts the requests of that route alone. */
  readonly route?: string;
}

/** A handler, with whatever a platform gives it beside the request. */
export type Handler<Q extends Request, A extends readonly unknown[]> = (
  request: Q,
  ...rest: A
) => Response | Promise<Response>;

/**
 * Wraps a handler.
 *
 * ```ts
 * const limited = rateLimit(limiter, sliding("5/minute"), { key: userOf, route: "GET /item/[id]" });
 * export const GET = limited(async (request, { params }) => Response.json(await itemOf(params)));
 * ```
 */
export function rateLimit<Q extends Request = Request>(
  limiter: Limiter,
  limits: Limits<Q>,
  options: RateLimitOptions<Q>,
): <A extends readonly unknown[]>(handler: Handler<Q, A>) => (request: Q, ...rest: A) => Promise<Response> {
  const { key, route } = options;
  if (typeof key !== "function")
    throw new TypeError("rateLimit() needs a key: a Request does not say where it is from");
  const admit = guard(limiter, limits, options, () => undefined, "route");
  return (handler) =>
    async (request, ...rest) => {
      const admission = await admit(request, route);
      return responded(request, admission, request, async () => handler(request, ...rest));
    };
}

/** Middleware for Hono, version 4. */

import type { Context, MiddlewareHandler } from "hono";
import { answer, type GuardOptions, guard, type Limits, responded } from "./guard.js";
import { mountedAt, type RequestLike } from "./identity.js";
import type { Limiter } from "./limiter.js";

export type { CostOf, KeyOf, Limit, Limits, RuleOf } from "./guard.js";

export type RateLimitOptions = GuardOptions<Context, (context: Context) => Response | Promise<Response>>;

/**
 * ```ts
 * app.use(rateLimit(limiter, sliding("100/minute")));
 * app.get("/item/:id", rateLimit(limiter, sliding("5/minute")), handler);
 * ```
 *
 * A rule without a name counts the requests of the path alone that the middleware is declared on: here of all, and of
 * `/item/:id`. `context.get("rateLimit")` has the decision.
 */
export function rateLimit(
  limiter: Limiter,
  limits: Limits<Context>,
  options: RateLimitOptions = {},
): MiddlewareHandler {
  const admit = guard(limiter, limits, options, incomingOf);
  return async (context, next) => {
    const { refusal, onDenied, headers, result, end } = await admit(context, routeOf(context));
    context.set("rateLimit", result);
    const respond = async () => {
      if (onDenied) return onDenied(context);
      if (refusal) return answer(refusal);
      // What the application throws is answered within.
      await next();
      return context.res;
    };
    const response = await responded(context.req.raw, respond, end);
    if (response !== context.res) {
      // Without that Hono would add the headers of the one to the other.
      context.res = undefined;
      context.res = response;
    }
    for (const [name, value] of Object.entries(headers)) context.header(name, value, { append: true });
  };
}

/** The request of Node.js, which @hono/node-server gives along. */
function incomingOf({ env }: Context): (RequestLike & { readonly url?: string }) | undefined {
  return (env as { incoming?: RequestLike } | undefined)?.incoming;
}

/**
 * The path as it was declared, behind the one at which the application is mounted, and the method. The helper of hono/route
 * knows only requests of the same copy of Hono, of which an ES module has another one.
 */
function routeOf(context: Context): string | undefined {
  const { req } = context;
  const route = req.matchedRoutes[req.routeIndex];
  // An application that is mounted gets another request, whose path does not say where.
  const { url } = incomingOf(context) ?? {};
  const base = url === undefined ? "" : mountedAt(url, new URL(req.url).pathname);
  return route && `${route.method} ${base}${route.path}`;
}

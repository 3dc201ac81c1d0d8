/** Middleware for Hono, version 4. */

import type { Context, MiddlewareHandler as Middleware } from "hono";
import { type GuardOptions, guard, type Limits, responded } from "./guard.js";
import { mountedAt, type RequestLike } from "./identity.js";
import type { Limiter } from "./limiter.js";

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
export function rateLimit(limiter: Limiter, limits: Limits<Context>, options: RateLimitOptions = {}): Middleware {
  const admit = guard(limiter, limits, options, incomingOf);
  return async (context, next) => {
    const admission = await admit(context, routeOf(context));
    context.set("rateLimit", admission.result);
    const response = await responded(context.req.raw, admission, context, async () => {
      // What the application throws is answered within.
      await next();
      return context.res;
    });
    // To a denial Hono adds what was set outside, if its own response was looked at; a copy of the application's has that already.
    if (context.res === response) return;
    if (!admission.refusal) context.res = undefined;
    context.res = response;
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

/** Middleware for Koa, versions 2 and 3. */

import type { Context, Middleware, Next } from "koa";
import { type GuardOptions, guard, type Limits } from "./guard.js";
import { mountedAt, routeName } from "./identity.js";
import type { Limiter } from "./limiter.js";

export type RateLimitOptions = GuardOptions<Context, (context: Context) => unknown>;

/**
 * ```ts
 * app.use(rateLimit(limiter, sliding("100/minute")));
 * router.get("/item/:id", rateLimit(limiter, sliding("5/minute")), handler); // of @koa/router
 * ```
 *
 * On a route a rule without a name counts the requests of that route alone. `context.state.rateLimit` has the decision.
 */
export function rateLimit(limiter: Limiter, limits: Limits<Context>, options: RateLimitOptions = {}): Middleware {
  const admit = guard(limiter, limits, options, ({ req }) => req);
  return async (context: Context, next: Next) => {
    const { refusal, onDenied, headers, result } = await admit(context, routeOf(context), context.res);
    context.state.rateLimit = result;
    if (refusal) {
      context.status = refusal.status;
      if (onDenied) return onDenied(context);
      context.body = refusal.body;
      context.type = refusal.type;
      return undefined;
    }
    try {
      return await next();
    } catch (error) {
      // Koa takes all headers off an error's response but those of the error, which may be one for all requests.
      if (error instanceof Error) {
        const told = Object.keys(headers).map((name) => [name, context.response.get(name)]);
        const { headers: own } = error as { headers?: object };
        const value = { ...own, ...Object.fromEntries(told) };
        // They may have been a getter.
        Reflect.defineProperty(error, "headers", { value, writable: true, enumerable: true, configurable: true });
      }
      throw error;
    }
  };
}

/**
 * The template of the route that the middleware is declared on, as @koa/router and koa-router leave it, behind the path at which
 * koa-mount has put its application.
 */
function routeOf(context: Context & Routed) {
  const { method, _matchedRoute: path, matched = [], mountPath, originalUrl } = context;
  // Of applications within each other koa-mount names the innermost path alone.
  const whole = mountPath === undefined ? "" : mountedAt(originalUrl, context.path);
  const base = mountPath === undefined || whole.endsWith(mountPath) ? whole : mountPath;
  if (path === undefined) return base || undefined;
  const route = matched.find((layer) => layer.path === path && layer.methods.includes(method));
  return routeName(route?.methods ?? [method], `${base}${String(path)}`);
}

/** What the routers and koa-mount leave in a context. */
interface Routed {
  readonly _matchedRoute?: unknown;
  readonly matched?: readonly { readonly path: unknown; readonly methods: readonly string[] }[];
  readonly mountPath?: string;
}

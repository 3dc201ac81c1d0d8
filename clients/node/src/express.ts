/** Middleware for Express, versions 4 and 5. */

import type { NextFunction, Request, RequestHandler, Response } from "express";
import { type GuardOptions, guard, type Limits } from "./guard.js";
import { decoded, routeName } from "./identity.js";
import type { Limiter } from "./limiter.js";

export type RateLimitOptions = GuardOptions<Request, RequestHandler>;

/**
 * ```ts
 * app.use(rateLimit(limiter, sliding("100/minute")));
 * app.get("/item/:id", rateLimit(limiter, sliding("5/minute")), handler);
 * ```
 *
 * On a route a rule without a name counts the requests of that route alone. `response.locals.rateLimit` has the decision.
 */
export function rateLimit(limiter: Limiter, limits: Limits<Request>, options: RateLimitOptions = {}): RequestHandler {
  const admit = guard(limiter, limits, options, (request) => request);
  const limit = (request: Request, response: Response, next: NextFunction) => {
    admit(request, routeOf(request, limit), response)
      .then(async ({ refusal, onDenied, result }) => {
        if (response.headersSent) return;
        response.locals.rateLimit = result;
        if (!refusal) next();
        else if (onDenied) await onDenied(request, response, next);
        else {
          // What stands in for the response of a WebSocket returns nothing.
          response.writeHead(refusal.status, { "Content-Type": refusal.type });
          response.end(refusal.body);
        }
      }, next)
      .catch(next);
  };
  return limit;
}

/**
 * The template of the route that the middleware is declared on. Express tells the path of its router as it was requested
 * only, so the parameters in that, those that a router with `mergeParams` knows, become `:`.
 */
function routeOf({ route, method, baseUrl, params }: Request, limit: RequestHandler): string | undefined {
  if (!route) return undefined;
  // Those for which the route has this middleware, perhaps in a function of the application's. What has no method is of all.
  const layers = (route.stack as { readonly handle: unknown; readonly method?: string }[]).filter(
    ({ handle }) => handle === limit,
  );
  const methods = layers.length === 0 ? [method] : layers.map(({ method = "all" }) => method);
  const own = String(route.path);
  // What has no name is numbered.
  const isOwn = (name: string) =>
    [...own.matchAll(/[:*]([\p{ID_Continue}$]+)/gu)].some(([, each]) => each === name) ||
    (/^\d+$/.test(name) && /[*(]/.test(own));
  // Paths match in any case.
  const base = baseUrl.toLowerCase().split("/");
  for (const [name, value] of Object.entries(params)) {
    const text = String(value).toLowerCase();
    const i = base.findLastIndex((part) => decoded(part, decodeURIComponent) === text);
    // Without its name: a client that sends one value twice would choose where each stands.
    if (i >= 0 && !isOwn(name)) base[i] = ":";
  }
  return routeName(methods, `${base.join("/")}${own}`);
}

/** A result made of figures, through a connection that replies with them. */

import { type Connection, Limiter, type Result, type Rule } from "redis-rl";

type Figures = Record<string, number>;

export async function fakeResult(rule: Rule, ...windows: [Figures, ...Figures[]]): Promise<Result> {
  const maps = windows.map((figures) => {
    const map: Figures = {
      allowed: 1,
      limit: 1,
      used: 0,
      remaining: Math.max(0, (figures.limit ?? 1) - (figures.used ?? 0)),
      "retry-after-ms": 0,
      "next-after-ms": 0,
      "reset-after-ms": 0,
      "window-ms": 60_000,
      "at-ms": 1_700_000_000_000,
      ...figures,
    };
    return Object.entries(map).flat();
  });
  const connection: Connection = { keyPrefix: "", send: async () => (maps.length > 1 ? maps : maps[0]) };
  return new Limiter(connection).hit("key", rule);
}

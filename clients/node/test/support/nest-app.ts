/** An application of Nest in a process of its own: its argument is the port of the server, it sends its own. */

import "reflect-metadata";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { Redis } from "ioredis";
import { Limiter } from "redis-rl";
import { NestThrottlerStorage } from "redis-rl/nestjs";

class Home {
  home() {
    return "in";
  }
}
Get()(Home.prototype, "home", Object.getOwnPropertyDescriptor(Home.prototype, "home") as PropertyDescriptor);
Controller()(Home);

class App {}
const redis = new Redis(Number(process.argv[2]));
// On a machine that is busy with other things, too.
const storage = new NestThrottlerStorage(new Limiter(redis), { timeout: 5000 });
Module({
  imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 5 }], storage })],
  controllers: [Home],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})(App);

NestFactory.create(App, { logger: ["error"] })
  .then((nest) => nest.listen(0, "127.0.0.1"))
  .then((server: { address(): { port: number } }) => process.send?.(server.address().port));

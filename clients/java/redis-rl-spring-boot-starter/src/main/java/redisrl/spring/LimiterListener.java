package redisrl.spring;

import java.util.function.Consumer;
import redisrl.Event;

/** A bean that is told of each call of the limiter, when it has ended. It must not block. */
@FunctionalInterface
public interface LimiterListener extends Consumer<Event> {}

package redisrl;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/** A lease that renews itself until it is closed. See {@link Limiter#hold}. */
public final class Held extends Kept {
  private final AtomicBoolean isReleased = new AtomicBoolean();

  Held(Limiter limiter, Waiting.Waiter waiter, Decision granted) {
    super(
        limiter,
        List.of(waiter.at),
        Duration.ofMillis(((Rule.Lease) waiter.at.rule()).ms),
        granted,
        waiter.asked);
  }

  @Override
  public void close() {
    if (isReleased.compareAndSet(false, true)) {
      end();
      limiter.giveBack(rules, decision());
    }
  }
}

package redisrl;

import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;

/** A lease that renews itself until it is closed. See {@link Limiter#hold}. */
public final class Held extends Kept {
  private final AtomicBoolean isReleased = new AtomicBoolean();

  Held(Limiter limiter, Keyed at, long began) {
    super(limiter, "hit", List.of(at), Duration.ofMillis(((Rule.Lease) at.rule()).ms), began);
  }

  /** The name under which the lease is held. */
  public String holder() {
    return Objects.requireNonNull(((Rule.Lease) rules.get(0).rule()).holder);
  }

  @Override
  public void close() {
    if (isReleased.compareAndSet(false, true)) {
      end();
      limiter.giveBack(rules);
    }
  }
}

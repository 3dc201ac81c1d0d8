package redisrl;

import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** A lease that renews itself until it is closed. See {@link Limiter#hold}. */
public final class Held implements AutoCloseable {
  private final Limiter limiter;
  private final Keyed at;
  private final Keeper keeper;
  private final AtomicBoolean isReleased = new AtomicBoolean();

  Held(Limiter limiter, Keyed at, long began) {
    this.limiter = limiter;
    this.at = at;
    this.keeper = new Keeper(limiter, "hit", List.of(at), Duration.ofMillis(lease().ms), began);
  }

  private Rule.Lease lease() {
    return (Rule.Lease) at.rule();
  }

  /** The name under which the lease is held. */
  public String holder() {
    return Objects.requireNonNull(lease().holder);
  }

  /**
   * Whether the lease has ended before it was closed: others may hold it now. It is counted by the
   * clock of this process, from before the last renewal was sent, so that it is never noticed too
   * late, also while the server does not answer.
   */
  public boolean isLost() {
    return keeper.isLost();
  }

  /** Completes when the lease is lost. */
  public CompletableFuture<Void> lost() {
    return keeper.lost();
  }

  /**
   * Ends the lease. An error is logged, and is no concern of the work's: the lease then ends by
   * itself.
   */
  @Override
  public void close() {
    if (isReleased.compareAndSet(false, true)) {
      keeper.end();
      limiter.giveBack(List.of(at));
    }
  }
}

package redisrl.spring;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import java.util.Locale;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.util.function.SingletonSupplier;
import redisrl.Decision;
import redisrl.Event;
import redisrl.UnavailableException;

/**
 * Counts the calls of the limiter: {@code rate.limiter.calls}, by how they ended and who decided.
 */
final class Counters implements LimiterListener {
  private final Supplier<@Nullable MeterRegistry> registry;

  /** The registry is asked for with the first call: it may need what needs the limiter. */
  Counters(ObjectProvider<MeterRegistry> registry) {
    this.registry = SingletonSupplier.ofNullable(registry::getIfUnique);
  }

  @Override
  public void accept(Event event) {
    Decision decision = event.decision();
    String outcome =
        decision != null
            ? decision.allowed() ? "allowed" : "denied"
            : event.error() == null
                ? "done"
                : event.error() instanceof UnavailableException ? "unavailable" : "error";
    String source = decision == null ? "none" : decision.source().name().toLowerCase(Locale.ROOT);
    MeterRegistry meters = registry.get();
    if (meters != null) {
      Tags tags =
          Tags.of("limiter", event.limiter(), "call", event.call())
              .and("outcome", outcome, "source", source);
      meters.counter("rate.limiter.calls", tags).increment();
    }
  }
}

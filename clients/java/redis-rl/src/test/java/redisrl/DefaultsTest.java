package redisrl;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

/**
 * The defaults that all packages share. What happens when a caller leaves, and what a hook gets,
 * LiveTest plays.
 */
class DefaultsTest {
  /** The rows of the file by their paths, such as {@code breaker.pause_ms}. */
  private static void rows(String path, JsonNode value, Map<String, String> rows) {
    if (value.isObject()) {
      value
          .properties()
          .forEach(
              row ->
                  rows(
                      path.isEmpty() ? row.getKey() : path + "." + row.getKey(),
                      row.getValue(),
                      rows));
    } else {
      rows.put(path, value.isArray() ? value.toString() : value.asText());
    }
  }

  @Test
  void theDefaultsAreThoseOfAllPackages() {
    Map<String, String> rows = new TreeMap<>();
    rows("", CasesTest.read("defaults.json"), rows);
    Limiter limiter = Limiter.builder(new Between(null)).build();
    List<String> modes = new ArrayList<>();
    for (Mode mode : Mode.values()) {
      modes.add("\"" + mode.name().toLowerCase(Locale.ROOT) + "\"");
    }
    Map<String, Object> own = new TreeMap<>();
    own.put("limiter.name", limiter.name);
    own.put("limiter.prefix", limiter.prefix);
    own.put("limiter.mode", limiter.mode().name().toLowerCase(Locale.ROOT));
    own.put("limiter.timeout_ms", limiter.timeout.toMillis());
    own.put("limiter.deny_cache", false); // It has no deny cache.
    own.put("adapter.prefix", Guard.PREFIX);
    own.put("adapter.timeout_ms", Guard.TIMEOUT.toMillis());
    own.put("adapter.deny_cache", true);
    own.put("deny_cache.entries", Denials.MOST);
    own.put("deny_cache.bytes", Denials.MOST_BYTES);
    own.put("deny_cache.believed_at_most_ms", Denials.LONGEST.toMillis());
    own.put("identity.longest_bytes", Keys.LONGEST);
    own.put("identity.kept_bytes", Keys.KEPT);
    own.put("identity.mark", Keys.MARK);
    own.put("breaker.pause_ms", Core.PAUSE.toMillis());
    own.put("local.counters", Local.MOST);
    own.put("mode.modes", "[" + String.join(",", modes) + "]");
    own.put("mode.probed_again_ms", Core.PROBE.toMillis());
    own.put("wait.outage_poll_ms", Core.PAUSE.toMillis());
    own.put("wait.turn_at_most_ms", Command.LONGEST_TURN.toMillis());
    own.put("wait.last_call_share_of_timeout", 1.0 / Waiting.LAST_CALL);
    own.put("hold.first_poll_ms", Waiting.FIRST_POLL.toMillis());
    own.put("hold.longest_poll_ms", Waiting.LONGEST_POLL.toMillis());
    own.put("hold.outage_poll_ms", Core.PAUSE.toMillis());
    own.put("hold.last_call_share_of_timeout", 1.0 / Waiting.LAST_CALL);
    own.put("hold.renewals_a_lease", Kept.RENEWALS);
    own.put("reservation.lease_ms", Limiter.LEASE.toMillis());
    own.put("reservation.remembered_at_least_ms", Reservation.REMEMBERED.toMillis());
    own.put("reservation.renewals_a_lease", Kept.RENEWALS);
    own.put("problem.type", Decision.QUOTA_EXCEEDED);
    own.put("problem.title", Decision.TITLE);
    assertThat(Keys.random()).matches(rows.remove("reservation.holder"));
    // What the starter or a server has a part in is not here.
    rows.keySet()
        .removeIf(
            row ->
                row.matches(
                    "about|adapter\\.(when_unavailable|ipv6_prefix|without_identity|status\\..*)|caller_leaves\\..*|breaker.certificate_that_fails|hook\\..*|headers|problem.content_type"));
    Map<String, String> told = new TreeMap<>();
    own.forEach((row, value) -> told.put(row, String.valueOf(value)));
    assertThat(told).isEqualTo(rows);
    assertThat(Duration.ofMillis(Long.parseLong(rows.get("limiter.timeout_ms"))))
        .isEqualTo(Duration.ofSeconds(1));
  }
}

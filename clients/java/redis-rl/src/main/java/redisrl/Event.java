package redisrl;

import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A call that has ended, for the listener of a limiter.
 *
 * @param limiter the limiter's name
 * @param call "hit", "turn", "peek", "all", "refund", "reset", "release", "settle", or "renew" for
 *     what is held
 * @param keys those of the call, without the limiter's prefix
 * @param took how long it took
 * @param decision the answer of a hit, a turn, a peek or an all
 * @param error how the call failed, if it did
 */
public record Event(
    String limiter,
    String call,
    List<String> keys,
    Duration took,
    @Nullable Decision decision,
    @Nullable Throwable error) {}

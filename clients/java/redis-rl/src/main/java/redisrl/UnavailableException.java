package redisrl;

import org.jspecify.annotations.Nullable;

/**
 * The server cannot decide now, through no fault of the call: it is down, does not answer in time,
 * is loading, busy, out of memory, or failing over. What follows is the caller's choice: let the
 * request through, refuse it, or limit it in memory.
 */
public final class UnavailableException extends RuntimeException {
  /** Whether the call was sent, so that the server may have carried it out. */
  final boolean sent;

  UnavailableException(String message, @Nullable Throwable cause, boolean sent) {
    super(message, cause);
    this.sent = sent;
  }
}

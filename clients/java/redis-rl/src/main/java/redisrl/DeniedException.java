package redisrl;

/** What hold and reserve throw where the request does not fit. Nothing was counted. */
public final class DeniedException extends RuntimeException {
  private final transient Decision decision;

  DeniedException(Decision decision) {
    super(decision.toString());
    this.decision = decision;
  }

  /** The answer; its retryAfter says when to ask again. */
  public Decision decision() {
    return decision;
  }
}

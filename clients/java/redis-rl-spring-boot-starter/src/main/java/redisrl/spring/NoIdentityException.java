package redisrl.spring;

/** A request has nothing to count it by, and is answered with status 403. */
public final class NoIdentityException extends RuntimeException {
  /** The request does not have what its key asks for. */
  public NoIdentityException() {
    super("the request has no identity");
  }
}

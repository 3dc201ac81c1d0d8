package redisrl.spring;

import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redisrl.Decision;
import redisrl.Guard;
import redisrl.ServerException;
import redisrl.UnavailableException;

/** What a decision means for the response. */
record Answer(int status, Map<String, String> headers, String body) {
  static final String CONTENT_TYPE = "application/problem+json";

  private static final int PASSES = 200;

  /** Of a request without a limit. */
  static final Answer UNLIMITED = new Answer(PASSES, Map.of(), "");

  private static final Logger LOG = LoggerFactory.getLogger(Answer.class);

  static Answer by(Guard guard, Supplier<List<Guard.Limit>> limits) {
    try {
      List<Guard.Limit> asked = limits.get();
      return asked.isEmpty() ? UNLIMITED : of(guard.decide(asked));
    } catch (RuntimeException error) {
      return of(error);
    }
  }

  static Answer of(Decision decision) {
    Decision.Problem problem = decision.problem();
    return new Answer(
        problem == null ? PASSES : problem.status(),
        decision.headers(),
        problem == null ? "" : problem.json());
  }

  /** For a request that nobody has decided on. The client is told no more than the status. */
  static Answer of(Throwable error) {
    if (error instanceof NoIdentityException) {
      return problem("The request has nothing to count it by", 403);
    }
    if (error instanceof UnavailableException) {
      return problem("The rate limiter is not available", 503);
    }
    if (error instanceof ServerException) { // Clients can cause any number of them.
      LOG.debug("a request could not be limited", error);
    } else {
      LOG.error("a request could not be limited", error);
    }
    return problem("The request could not be limited", 500);
  }

  private static Answer problem(String title, int status) {
    return new Answer(
        status, Map.of(), new Decision.Problem("about:blank", title, status, List.of()).json());
  }

  /** Whether the request goes on. */
  boolean passes() {
    return status == PASSES;
  }
}

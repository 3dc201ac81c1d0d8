package redisrl.spring;

import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.Principal;
import java.util.Collections;
import java.util.List;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.http.server.PathContainer;
import org.springframework.http.server.RequestPath;
import redisrl.Guard;

/** Decides on the requests of a servlet container, and answers those that are denied. */
final class ServletAdmission {
  /** A request as limits see it. */
  record Seen(HttpServletRequest of) implements Settings.Request {
    @Override
    public String method() {
      return of.getMethod();
    }

    /** As Spring MVC routes it: decoded, and without parameters of the path. */
    @Override
    public PathContainer path() {
      return RequestPath.parse(of.getRequestURI(), of.getContextPath()).pathWithinApplication();
    }

    @Override
    public @Nullable String peer() {
      return of.getRemoteAddr();
    }

    @Override
    public @Nullable String header(String name) {
      return of.getHeader(name);
    }

    @Override
    public List<String> forwarded() {
      var lines = of.getHeaders(FORWARDED);
      return lines == null ? List.of() : Collections.list(lines);
    }

    @Override
    public @Nullable String principal() {
      Principal principal = of.getUserPrincipal();
      return principal == null ? null : principal.getName();
    }
  }

  private final Guard guard;

  ServletAdmission(Guard guard) {
    this.guard = guard;
  }

  Answer decide(Supplier<List<Guard.Limit>> limits) {
    try {
      List<Guard.Limit> asked = limits.get();
      return asked.isEmpty() ? Answer.UNLIMITED : Answer.of(guard.decide(asked));
    } catch (RuntimeException error) {
      return Answer.of(error);
    }
  }

  /** Whether the request goes on. It has its answer otherwise. */
  boolean admits(HttpServletResponse response, Supplier<List<Guard.Limit>> limits)
      throws IOException {
    Answer answer = decide(limits);
    answer.headers().forEach(response::setHeader);
    if (!answer.passes()) {
      response.setStatus(answer.status());
      response.setContentType(Answer.CONTENT_TYPE);
      response.getOutputStream().write(answer.body().getBytes(StandardCharsets.UTF_8));
    }
    return answer.passes();
  }
}

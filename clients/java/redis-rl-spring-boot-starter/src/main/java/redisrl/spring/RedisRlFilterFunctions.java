package redisrl.spring;

import java.util.List;
import java.util.Objects;
import java.util.Optional;
import org.springframework.cloud.gateway.server.mvc.common.MvcUtils;
import org.springframework.cloud.gateway.server.mvc.handler.GatewayServerResponse;
import org.springframework.http.MediaType;
import org.springframework.web.servlet.function.HandlerFilterFunction;
import org.springframework.web.servlet.function.RouterFunctions;
import org.springframework.web.servlet.function.ServerRequest;
import org.springframework.web.servlet.function.ServerResponse;
import org.springframework.web.servlet.support.RequestContextUtils;
import redisrl.Guard;
import redisrl.Rule;

/** A filter for routes of Spring Cloud Gateway MVC: {@code .filter(redisRl("100/minute"))}. */
public final class RedisRlFilterFunctions {
  private RedisRlFilterFunctions() {}

  /** A limit of the route, by {@code rate-limiter.key}. */
  public static HandlerFilterFunction<ServerResponse, ServerResponse> redisRl(String rate) {
    // Which of them is meant is known with the first request.
    Rule sliding = Rule.sliding(rate);
    Rule fixed = Rule.fixed(rate);
    return (request, next) -> {
      var servlet = request.servletRequest();
      var context = Objects.requireNonNull(RequestContextUtils.findWebApplicationContext(servlet));
      Settings settings = context.getBean(Settings.class);
      Settings.Declared limit =
          settings.declared(settings.isFixed() ? fixed : sliding).on(route(request));
      Answer answer =
          Answer.by(
              context.getBean(Guard.class),
              () -> settings.of(RateLimitFilter.seen(servlet), List.of(limit)));
      if (!answer.passes()) {
        return ServerResponse.status(answer.status())
            .contentType(MediaType.APPLICATION_PROBLEM_JSON)
            .headers(headers -> answer.headers().forEach(headers::set))
            .body(answer.body());
      }
      ServerResponse response = next.handle(request);
      if (response instanceof GatewayServerResponse) {
        answer.headers().forEach(response.headers()::set);
      }
      return response;
    };
  }

  private static String route(ServerRequest request) {
    return Optional.ofNullable(request.attributes().get(MvcUtils.GATEWAY_ROUTE_ID_ATTR))
        .or(() -> request.attribute(RouterFunctions.MATCHING_PATTERN_ATTRIBUTE))
        .map(String::valueOf)
        .orElse("");
  }
}

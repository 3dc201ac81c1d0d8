package redisrl.spring;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import org.springframework.context.ApplicationContext;
import org.springframework.core.Ordered;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.cors.reactive.CorsUtils;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import org.springframework.web.server.WebFilterChain;
import reactor.core.publisher.Mono;
import redisrl.Guard;

/** Limits the requests of WebFlux. Preflight requests of CORS are not counted. */
final class RateLimitWebFilter implements WebFilter, Ordered {
  private final Guard guard;
  private final Function<ServerWebExchange, Mono<List<Guard.Limit>>> limits;
  private final int order;
  private final ApplicationContext context;

  RateLimitWebFilter(
      Guard guard,
      Function<ServerWebExchange, Mono<List<Guard.Limit>>> limits,
      int order,
      ApplicationContext context) {
    this.guard = guard;
    this.limits = limits;
    this.order = order;
    this.context = context;
  }

  /** A request as limits see it. */
  static Settings.Request seen(ServerWebExchange exchange, @Nullable String principal) {
    ServerHttpRequest of = exchange.getRequest();
    InetSocketAddress peer = of.getRemoteAddress();
    List<String> forwarded = new ArrayList<>();
    // By the one way to whole lines that Spring 6 and 7 share.
    of.getHeaders()
        .forEach(
            (name, lines) -> {
              if (name.equalsIgnoreCase(Settings.FORWARDED)) {
                forwarded.addAll(lines);
              }
            });
    return new Settings.Request(
        of.getMethod().name(),
        () -> of.getPath().pathWithinApplication(),
        // Not resolved where Spring has it from a header
        // (server.forward-headers-strategy=framework).
        peer == null
            ? null
            : peer.isUnresolved() ? peer.getHostString() : peer.getAddress().getHostAddress(),
        forwarded,
        name -> of.getHeaders().getFirst(name),
        () -> principal);
  }

  @Override
  public int getOrder() {
    return order;
  }

  @Override
  public Mono<Void> filter(ServerWebExchange exchange, WebFilterChain chain) {
    // Actuator's server on a port of its own is in a context below, which has these filters, too.
    ApplicationContext server = exchange.getApplicationContext();
    boolean isOther = server != null && server != context;
    if (isOther || CorsUtils.isPreFlightRequest(exchange.getRequest())) {
      return chain.filter(exchange);
    }
    return limits
        .apply(exchange)
        .flatMap(this::decided)
        .onErrorResume(error -> Mono.just(Answer.of(error)))
        .flatMap(
            answer -> {
              ServerHttpResponse response = exchange.getResponse();
              answer.headers().forEach(response.getHeaders()::set);
              return answer.passes() ? chain.filter(exchange) : written(response, answer);
            })
        .contextWrite(context -> Threads.with(context, exchange.getRequest()));
  }

  private Mono<Answer> decided(List<Guard.Limit> asked) {
    if (asked.isEmpty()) {
      return Mono.just(Answer.UNLIMITED);
    }
    return Threads.back(Mono.fromFuture(() -> guard.decideAsync(asked))).map(Answer::of);
  }

  private static Mono<Void> written(ServerHttpResponse response, Answer answer) {
    response.setStatusCode(HttpStatusCode.valueOf(answer.status()));
    response.getHeaders().set("Content-Type", Answer.CONTENT_TYPE);
    byte[] body = answer.body().getBytes(StandardCharsets.UTF_8);
    return response.writeWith(Mono.fromCallable(() -> response.bufferFactory().wrap(body)));
  }
}

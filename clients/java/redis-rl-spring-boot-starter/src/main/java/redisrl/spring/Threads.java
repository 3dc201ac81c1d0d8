package redisrl.spring;

import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.http.server.reactive.ServerHttpRequestDecorator;
import org.springframework.util.ClassUtils;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Scheduler;
import reactor.core.scheduler.Schedulers;
import reactor.netty.http.server.HttpServerRequest;
import reactor.util.context.Context;

/**
 * Where a request of WebFlux goes on when it was decided: in the thread of its connection, as it
 * would without a limit, and not in that of Redis' connection. Where other threads answer, a
 * connection of Reactor Netty 1.3.6 may read no further request (reactor-netty, issue 4361).
 */
final class Threads {
  private static final boolean HAS_NETTY =
      ClassUtils.isPresent(
          "reactor.netty.http.server.HttpServerRequest", Threads.class.getClassLoader());

  private Threads() {}

  /** For what follows a filter of the request. */
  static Context with(Context context, ServerHttpRequest request) {
    try {
      return HAS_NETTY
              && ServerHttpRequestDecorator.getNativeRequest(request)
                  instanceof HttpServerRequest netty
          ? context.put(Threads.class, of(netty))
          : context;
    } catch (IllegalArgumentException | IllegalStateException error) {
      return context; // A mock of a test.
    }
  }

  private static Scheduler of(HttpServerRequest request) {
    Scheduler[] found = {Schedulers.parallel()};
    request.withConnection(
        connection -> found[0] = Schedulers.fromExecutorService(connection.channel().eventLoop()));
    return found[0];
  }

  static <T> Mono<T> back(Mono<T> decided) {
    return Mono.deferContextual(
        context -> decided.publishOn(context.getOrDefault(Threads.class, Schedulers.parallel())));
  }
}

package redisrl.spring;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.context.annotation.ImportCandidates;
import org.springframework.context.ConfigurableApplicationContext;
import redisrl.TestServer;

/** An application that runs, and requests to it. */
final class App implements AutoCloseable {
  private static final HttpClient CLIENT = HttpClient.newHttpClient();

  final ConfigurableApplicationContext context;
  private final String port;

  private App(ConfigurableApplicationContext context) {
    this.context = context;
    this.port = context.getEnvironment().getProperty("local.server.port");
  }

  static App servlet(Class<?> config, String url, String... properties) {
    return start(config, WebApplicationType.SERVLET, url, properties);
  }

  static App reactive(Class<?> config, String url, String... properties) {
    return start(config, WebApplicationType.REACTIVE, url, properties);
  }

  static App start(Class<?> config, WebApplicationType type, String url, String... properties) {
    List<String> all = new ArrayList<>(List.of(properties));
    all.add("spring.autoconfigure.exclude=" + String.join(",", gatewaysBut(type)));
    if (!url.isEmpty() && all.stream().noneMatch(each -> each.startsWith("rate-limiter.url="))) {
      all.add("rate-limiter.url=" + url);
    }
    all.add("server.port=0");
    all.add("spring.main.banner-mode=off");
    all.add("spring.reactor.netty.shutdown-quiet-period=0");
    if (all.stream().noneMatch(each -> each.startsWith("rate-limiter.timeout"))) {
      all.add("rate-limiter.timeout=10s"); // For a machine that does other work.
    }
    return new App(
        new SpringApplicationBuilder(config)
            .web(type)
            .properties(all.toArray(String[]::new))
            .run());
  }

  /**
   * Both gateways are among the classes of these tests, and each is for one kind of application.
   */
  private static List<String> gatewaysBut(WebApplicationType type) {
    List<String> others = new ArrayList<>();
    for (String each : ImportCandidates.load(AutoConfiguration.class, null)) {
      WebApplicationType kind =
          each.contains(".server.mvc.") ? WebApplicationType.SERVLET : WebApplicationType.REACTIVE;
      if (each.startsWith("org.springframework.cloud.gateway.") && kind != type) {
        others.add(each);
      }
    }
    return others;
  }

  static String url(TestServer server) {
    return "redis://127.0.0.1:" + server.port;
  }

  HttpResponse<String> get(String path, String... headers) throws Exception {
    return send("GET", path, headers);
  }

  HttpResponse<String> send(String method, String path, String... headers) throws Exception {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path))
            .timeout(Duration.ofMinutes(2)) // So that one without an answer fails a test.
            .method(method, HttpRequest.BodyPublishers.noBody());
    if (headers.length > 0) {
      request.headers(headers);
    }
    return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
  }

  List<Integer> statuses(int times, String path, String... headers) throws Exception {
    List<Integer> statuses = new ArrayList<>();
    for (int i = 0; i < times; i++) {
      statuses.add(get(path, headers).statusCode());
    }
    return statuses;
  }

  @Override
  public void close() {
    context.close();
  }
}

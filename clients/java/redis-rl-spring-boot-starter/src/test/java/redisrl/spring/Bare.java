package redisrl.spring;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import redisrl.Limiter;
import redisrl.Rule;
import redisrl.UnavailableException;

/** An application of whatever kind the classes beside it make it: see {@link ClassPathTest}. */
@SpringBootConfiguration(proxyBeanMethods = false)
@EnableAutoConfiguration
@RestController
public class Bare {
  @GetMapping("/")
  String in() {
    return "in";
  }

  private static boolean isThere(Limiter limiter) {
    try {
      return limiter.hit("other", Rule.sliding("1000/hour")).allowed();
    } catch (UnavailableException error) {
      return false;
    }
  }

  /** Prints what became of three requests. */
  public static void main(String[] arguments) throws Exception {
    try (var context = SpringApplication.run(Bare.class, arguments)) {
      String port = context.getEnvironment().getProperty("local.server.port");
      Limiter limiter = context.getBean(Limiter.class);
      for (int i = 0; i < 100 && !isThere(limiter); i++) {
        Thread.sleep(100); // On a machine that does other work the server is found late.
      }
      for (int i = 0; i < 3; i++) {
        if (port == null) {
          System.out.println(limiter.hit("k", Rule.sliding("2/hour")).allowed() ? 200 : 429);
        } else {
          HttpRequest request =
              HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port)).build();
          System.out.println(
              HttpClient.newHttpClient()
                  .send(request, HttpResponse.BodyHandlers.ofString())
                  .statusCode());
        }
      }
    }
  }
}

package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.springframework.ai.chat.client.ChatClient;
import org.springframework.ai.chat.messages.AssistantMessage;
import org.springframework.ai.chat.metadata.ChatResponseMetadata;
import org.springframework.ai.chat.metadata.DefaultUsage;
import org.springframework.ai.chat.model.ChatModel;
import org.springframework.ai.chat.model.ChatResponse;
import org.springframework.ai.chat.model.Generation;
import org.springframework.ai.chat.prompt.Prompt;
import reactor.core.Disposable;
import reactor.core.publisher.Flux;
import redisrl.DeniedException;
import redisrl.Guard.WhenUnavailable;
import redisrl.Keys;
import redisrl.Limiter;
import redisrl.Rule;
import redisrl.UnavailableException;

class TokenBudgetAdvisorTest {
  private static final Rule.Sliding BUDGET = Rule.sliding("100/hour");

  /** A chunk, with what was used by then; 0 where it says nothing of that. */
  static ChatResponse said(String text, int used) {
    return new ChatResponse(
        List.of(new Generation(new AssistantMessage(text))),
        ChatResponseMetadata.builder().usage(new DefaultUsage(used, 0)).build());
  }

  /** A model that says one thing. */
  private record Model(Flux<ChatResponse> says) implements ChatModel {
    @Override
    public ChatResponse call(Prompt prompt) {
      return says.blockLast();
    }

    @Override
    public Flux<ChatResponse> stream(Prompt prompt) {
      return says;
    }
  }

  private static ChatClient.ChatClientRequestSpec asked(
      Limiter limiter, String user, Flux<ChatResponse> says, WhenUnavailable policy) {
    return ChatClient.builder(new Model(says))
        .defaultAdvisors(
            new TokenBudgetAdvisor(
                limiter,
                BUDGET,
                request -> (String) request.context().get("user"),
                request -> 60,
                policy))
        .build()
        .prompt("What is a limit?")
        .advisors(advisors -> advisors.param("user", user));
  }

  private static ChatClient.ChatClientRequestSpec asked(
      Limiter limiter, String user, Flux<ChatResponse> says) {
    return asked(limiter, user, says, WhenUnavailable.CLOSED);
  }

  private static LongSupplier used(Limiter limiter, String user) {
    return () -> limiter.peek(Keys.keyFor("rl:", BUDGET, user), BUDGET.cost(0)).used();
  }

  private static String user() {
    return UUID.randomUUID().toString();
  }

  @ParameterizedTest
  @EnumSource
  void aCallIsReservedAndSettled(Servers on) throws Exception {
    Limiter limiter = on.limiter();
    String user = user();
    LongSupplier used = used(limiter, user);
    Flux<ChatResponse> says =
        Flux.defer(
            () -> {
              assertThat(used.getAsLong()).isEqualTo(60);
              return Flux.just(said("a limit", 45));
            });
    assertThat(asked(limiter, user, says).call().content()).isEqualTo("a limit");
    assertThat(used.getAsLong()).isEqualTo(45);
    assertThatThrownBy(() -> asked(limiter, user, says).call().content())
        .isInstanceOfSatisfying(
            DeniedException.class,
            denied -> assertThat(denied.decision().retryAfter()).isPositive());
    assertThatThrownBy(() -> asked(limiter, user, says).stream().content().blockLast())
        .isInstanceOf(DeniedException.class);
    assertThat(used.getAsLong()).isEqualTo(45);
  }

  @ParameterizedTest
  @EnumSource
  void aStreamIsSettledByItsLastFigure(Servers on) throws Exception {
    Limiter limiter = on.limiter();
    String user = user();
    LongSupplier used = used(limiter, user);
    Flux<ChatResponse> says =
        Flux.just(said("a ", 0), said("limit", 12), said("", 70), said("", 0));
    assertThat(asked(limiter, user, says).stream().content().collectList().block())
        .startsWith("a ", "limit");
    // Also over the estimate.
    assertThat(used.getAsLong()).isEqualTo(70);
  }

  @Test
  void whatAModelDoesNotTellStaysCharged() throws Exception {
    Limiter limiter = Servers.MODULE.limiter();
    String user = user();
    asked(limiter, user, Flux.just(said("a limit", 0))).call().content();
    assertThat(used(limiter, user).getAsLong()).isEqualTo(60);
    String other = user();
    asked(limiter, other, Flux.just(said("a limit", 0))).stream().content().blockLast();
    assertThat(used(limiter, other).getAsLong()).isEqualTo(60);
  }

  @Test
  void whatFailsIsGivenBack() throws Exception {
    Limiter limiter = Servers.MODULE.limiter();
    String user = user();
    Flux<ChatResponse> fails = Flux.error(new IllegalStateException("on purpose"));
    assertThatThrownBy(() -> asked(limiter, user, fails).call().content())
        .hasMessageContaining("on purpose");
    assertThat(used(limiter, user).getAsLong()).isZero();
    assertThatThrownBy(
            () ->
                asked(limiter, user, Flux.concat(Flux.just(said("a ", 0)), fails)).stream()
                    .content()
                    .blockLast())
        .hasMessageContaining("on purpose");
    Servers.eventually(() -> used(limiter, user).getAsLong() == 0);
    assertThatThrownBy(
            () ->
                asked(limiter, user, Flux.concat(Flux.just(said("a ", 7)), fails)).stream()
                    .content()
                    .blockLast())
        .hasMessageContaining("on purpose");
    Servers.eventually(() -> used(limiter, user).getAsLong() == 7);
  }

  @Test
  void aReaderThatLeaves() throws Exception {
    Limiter limiter = Servers.MODULE.limiter();
    // Before anything has come.
    String user = user();
    CountDownLatch asked = new CountDownLatch(1);
    Disposable reader =
        asked(limiter, user, Flux.<ChatResponse>never().doOnSubscribe(s -> asked.countDown()))
            .stream()
            .content()
            .subscribe();
    assertThat(asked.await(30, TimeUnit.SECONDS)).isTrue();
    assertThat(used(limiter, user).getAsLong()).isEqualTo(60);
    reader.dispose();
    Servers.eventually(() -> used(limiter, user).getAsLong() == 0);
    // When some has.
    String other = user();
    Flux<ChatResponse> says = Flux.concat(Flux.just(said("a ", 0)), Flux.never());
    assertThat(asked(limiter, other, says).stream().content().blockFirst()).isEqualTo("a ");
    assertThat(used(limiter, other).getAsLong()).isEqualTo(60);
    // While the units are reserved.
    for (int i = 0; i < 20; i++) {
      String gone = user();
      asked(limiter, gone, Flux.never()).stream().content().subscribe().dispose();
      Thread.sleep(i % 4);
      Servers.eventually(() -> used(limiter, gone).getAsLong() == 0);
    }
  }

  @Test
  void whileTheServerIsAway() {
    Limiter away = Servers.away();
    Flux<ChatResponse> says = Flux.just(said("a limit", 45));
    assertThatThrownBy(() -> asked(away, "ann", says).call().content())
        .isInstanceOf(UnavailableException.class);
    assertThat(asked(away, "ann", says, WhenUnavailable.OPEN).call().content())
        .isEqualTo("a limit");
    assertThat(asked(away, "ann", says, WhenUnavailable.OPEN).stream().content().blockLast())
        .isEqualTo("a limit");
    assertThatThrownBy(() -> asked(away, "ann", says, WhenUnavailable.LOCAL))
        .isInstanceOf(IllegalArgumentException.class);
  }

  @Test
  void aCallWithoutAnIdentityIsRefused() throws Exception {
    Limiter limiter = Servers.MODULE.limiter();
    AtomicInteger calls = new AtomicInteger();
    Flux<ChatResponse> says =
        Flux.just(said("a limit", 45)).doOnSubscribe(s -> calls.incrementAndGet());
    assertThatThrownBy(() -> asked(limiter, "", says).call().content())
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("identity");
    assertThat(calls).hasValue(0);
  }
}

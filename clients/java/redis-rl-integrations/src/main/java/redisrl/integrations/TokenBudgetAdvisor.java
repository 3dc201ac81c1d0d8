package redisrl.integrations;

import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.ToLongFunction;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.ai.chat.client.ChatClientRequest;
import org.springframework.ai.chat.client.ChatClientResponse;
import org.springframework.ai.chat.client.advisor.api.CallAdvisor;
import org.springframework.ai.chat.client.advisor.api.CallAdvisorChain;
import org.springframework.ai.chat.client.advisor.api.StreamAdvisor;
import org.springframework.ai.chat.client.advisor.api.StreamAdvisorChain;
import org.springframework.ai.chat.metadata.Usage;
import org.springframework.ai.chat.model.ChatResponse;
import org.springframework.core.Ordered;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;
import redisrl.DeniedException;
import redisrl.Guard.WhenUnavailable;
import redisrl.Keys;
import redisrl.Limiter;
import redisrl.Reservation;
import redisrl.Rule;
import redisrl.UnavailableException;

/**
 * An advisor of Spring AI that keeps the calls of a model within a budget of tokens. It reserves an
 * estimate before a call, and settles what the model says that it has used.
 *
 * <p>A call that does not fit fails with {@link DeniedException}, whose decision says when to come
 * again. One that fails is given back, but for what was used by then. Where the model tells no
 * usage, the estimate stays charged. So it does where the reader of a stream leaves when some of it
 * has come, or who leaves early would never pay.
 *
 * <p>It stands right before the model, so that each call of a loop with tools is settled by itself.
 */
public final class TokenBudgetAdvisor implements CallAdvisor, StreamAdvisor {
  /** Behind all that change a prompt. */
  public static final int ORDER = Ordered.LOWEST_PRECEDENCE - 1000;

  private static final Logger LOG = LoggerFactory.getLogger(TokenBudgetAdvisor.class);
  private static final Executor BLOCKING = Schedulers.boundedElastic()::schedule;

  private final BiFunction<String, Long, Reservation> reserving;
  private final Function<ChatClientRequest, @Nullable String> identity;
  private final ToLongFunction<ChatClientRequest> estimate;
  private final WhenUnavailable policy;
  private final Outage outage;

  /**
   * An advisor for one budget of each identity, at the key {@code Keys.keyFor("rl:", rule,
   * identity)}.
   *
   * @param rule how many tokens, by a sliding or a fixed rule
   * @param identity who is limited, such as a parameter of the advisor: {@code request -> (String)
   *     request.context().get("user")}
   * @param estimate the most that the call can use: the tokens of the prompt, and those that the
   *     answer may have
   * @param policy what happens while the server is unavailable: OPEN lets calls through, CLOSED
   *     throws {@link UnavailableException}. There is no LOCAL: a reservation is the server's
   */
  public TokenBudgetAdvisor(
      Limiter limiter,
      Rule.Windowed<?> rule,
      Function<ChatClientRequest, @Nullable String> identity,
      ToLongFunction<ChatClientRequest> estimate,
      WhenUnavailable policy) {
    if (policy == WhenUnavailable.LOCAL) {
      throw new IllegalArgumentException(
          "a budget of tokens is OPEN or CLOSED while the server is unavailable, not LOCAL");
    }
    Objects.requireNonNull(limiter, "the limiter");
    Objects.requireNonNull(rule, "the rule");
    this.reserving = (who, units) -> limiter.reserve(Keys.keyFor("rl:", rule, who), rule, units);
    this.identity = Objects.requireNonNull(identity, "the identity");
    this.estimate = Objects.requireNonNull(estimate, "the estimate");
    this.policy = Objects.requireNonNull(policy, "the policy");
    this.outage = new Outage(getName(), policy);
  }

  @Override
  public String getName() {
    return "token budget";
  }

  @Override
  public int getOrder() {
    return ORDER;
  }

  @Override
  public ChatClientResponse adviseCall(ChatClientRequest request, CallAdvisorChain chain) {
    long units = units(request);
    Reservation reservation = reserve(request, units);
    if (reservation == null) {
      return chain.nextCall(request);
    }
    try (reservation) { // Which gives back what is not settled.
      ChatClientResponse response = chain.nextCall(request);
      long used = used(response);
      settle(reservation, used > 0 ? used : units);
      return response;
    }
  }

  @Override
  public Flux<ChatClientResponse> adviseStream(
      ChatClientRequest request, StreamAdvisorChain chain) {
    return Flux.defer(
        () -> {
          Streamed streamed = new Streamed(request);
          return blocking(streamed::reserve)
              .thenMany(Flux.defer(() -> chain.nextStream(request)))
              .doOnNext(streamed::saw)
              .concatWith(blocking(streamed::complete).then(Mono.empty()))
              .doOnError(error -> BLOCKING.execute(streamed::fail))
              .doOnCancel(streamed::leave);
        });
  }

  /** In a thread that goes on where the reader leaves. */
  private static Mono<Void> blocking(Runnable work) {
    return Mono.fromFuture(() -> CompletableFuture.runAsync(work, BLOCKING));
  }

  /** What a stream has reserved. Whatever asks the server blocks, apart from the chunks. */
  private final class Streamed {
    private final ChatClientRequest request;
    private final long units;
    private @Nullable Reservation reservation;
    private boolean isOver;
    private boolean hasBegun;
    private long used;

    Streamed(ChatClientRequest request) {
      this.request = request;
      this.units = units(request);
    }

    void reserve() {
      Reservation taken = TokenBudgetAdvisor.this.reserve(request, units);
      synchronized (this) {
        if (!isOver) {
          reservation = taken;
          return;
        }
      }
      if (taken != null) { // The reader has left meanwhile.
        taken.close();
      }
    }

    /** A figure is the sum of all that was used by then, or there is one at the end. */
    synchronized void saw(ChatClientResponse chunk) {
      hasBegun = true;
      used = Math.max(used, used(chunk));
    }

    void complete() {
      end(true);
    }

    void fail() {
      end(false);
    }

    synchronized void leave() {
      isOver = true;
      boolean staysCharged = hasBegun;
      BLOCKING.execute(() -> end(staysCharged));
    }

    private void end(boolean staysCharged) {
      Reservation taken;
      long charged;
      synchronized (this) {
        taken = reservation;
        reservation = null;
        charged = used > 0 || !staysCharged ? used : units;
      }
      if (taken != null) {
        settle(taken, charged);
        taken.close();
      }
    }
  }

  private long units(ChatClientRequest request) {
    return Math.max(estimate.applyAsLong(request), 1);
  }

  /** Null where the call is let through without one. */
  private @Nullable Reservation reserve(ChatClientRequest request, long units) {
    String who = identity.apply(request);
    if (who == null || who.isEmpty()) {
      throw new IllegalArgumentException(
          "a call without an identity must not share a budget with others of its kind");
    }
    try {
      Reservation reservation = reserving.apply(who, units);
      outage.ended();
      return reservation;
    } catch (DeniedException denied) {
      outage.ended();
      throw denied;
    } catch (UnavailableException error) {
      outage.began(error);
      if (policy == WhenUnavailable.CLOSED) {
        throw error;
      }
      return null;
    }
  }

  /** An error is no concern of the call's. */
  private static void settle(Reservation reservation, long used) {
    try {
      reservation.settle(used);
    } catch (RuntimeException error) {
      LOG.warn("what a model has used could not be settled", error);
    }
  }

  /** What the model tells, or 0. */
  private static long used(ChatClientResponse response) {
    ChatResponse answer = response.chatResponse();
    Usage usage = answer == null ? null : answer.getMetadata().getUsage();
    Integer tokens = usage == null ? null : usage.getTotalTokens();
    return tokens == null ? 0 : tokens;
  }
}

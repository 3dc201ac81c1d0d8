package redisrl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** What all packages have in common, from clients/cases. */
class CasesTest {
  private static final ObjectMapper JSON = new ObjectMapper();

  static JsonNode read(String file) {
    try {
      return JSON.readTree(Path.of("../../cases", file).toFile());
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  private static Stream<JsonNode> list(JsonNode cases, String... names) {
    return Stream.of(names)
        .flatMap(name -> StreamSupport.stream(cases.get(name).spliterator(), false));
  }

  /** A test for each case, which fails on a field that is not known here. */
  private static Stream<DynamicTest> each(
      String file, String list, Set<String> fields, Consumer<JsonNode> test) {
    JsonNode cases = read(file);
    return list(cases, list)
        .map(
            one ->
                DynamicTest.dynamicTest(
                    list + " " + Rates.shortened(one.toString()),
                    () -> {
                      for (Iterator<String> names = one.fieldNames(); names.hasNext(); ) {
                        assertThat(fields).contains(names.next());
                      }
                      test.accept(one);
                    }));
  }

  private static void refuses(JsonNode one, Runnable call) {
    Throwable error = catchThrowable(call::run);
    assertThat(error).isInstanceOf(IllegalArgumentException.class);
    for (JsonNode text : one.get("error")) {
      assertThat(error).hasMessageContaining(text.asText());
    }
  }

  private static boolean isTyped(JsonNode one) {
    return one.path("typed").asBoolean();
  }

  // Rules.

  private static String[] texts(JsonNode list) {
    return StreamSupport.stream(list.spliterator(), false)
        .map(JsonNode::asText)
        .toArray(String[]::new);
  }

  private static Duration seconds(JsonNode number) {
    var exact = number.decimalValue();
    return Duration.ofSeconds(exact.longValue())
        .plusNanos(
            exact
                .subtract(new java.math.BigDecimal(exact.longValue()))
                .movePointRight(9)
                .longValueExact());
  }

  private static List<Rates.Window> windows(JsonNode rates) {
    List<Rates.Window> windows = new ArrayList<>();
    for (JsonNode rate : rates) {
      if (rate.isArray()) {
        windows.add(Rates.window(rate.get(0).longValue(), seconds(rate.get(1))));
      } else {
        for (String part : rate.asText().split(",", -1)) {
          windows.addAll(Rates.windows(part));
        }
      }
    }
    return Rates.sorted(windows);
  }

  private static Rule.Sliding sliding(JsonNode rates) {
    if (rates.size() == 1 && rates.get(0).isArray()) {
      return Rule.sliding(rates.get(0).get(0).longValue(), seconds(rates.get(0).get(1)));
    }
    return Rule.sliding(texts(rates));
  }

  private static Rule.Fixed fixed(JsonNode rates) {
    if (rates.size() == 1 && rates.get(0).isArray()) {
      return Rule.fixed(rates.get(0).get(0).longValue(), seconds(rates.get(0).get(1)));
    }
    return Rule.fixed(texts(rates));
  }

  private static String rate(JsonNode rate) {
    return rate.isArray() ? rate.get(0).asText() + "/" + rate.get(1).asText() + "s" : rate.asText();
  }

  private static final Set<String> RULE =
      Set.of(
          "kind",
          "rates",
          "rate",
          "anchored",
          "burst",
          "limit",
          "ttl",
          "holder",
          "name",
          "unit",
          "cost",
          "force",
          "zone",
          "starts",
          "reserved");

  private static Rule rule(JsonNode d) {
    for (Iterator<String> names = d.fieldNames(); names.hasNext(); ) {
      assertThat(RULE).contains(names.next());
    }
    JsonNode cost = d.get("cost");
    JsonNode name = d.get("name");
    JsonNode unit = d.get("unit");
    boolean force = d.path("force").asBoolean();
    switch (d.get("kind").asText()) {
      case "sliding" -> {
        Rule.Sliding rule = sliding(d.get("rates"));
        rule = name == null ? rule : rule.name(name.asText());
        rule = unit == null ? rule : rule.unit(unit.asText());
        rule = cost == null ? rule : rule.cost(cost.longValue());
        return force ? rule.force() : rule;
      }
      case "fixed", "calendar" -> {
        Rule.Fixed rule =
            d.get("kind").asText().equals("fixed")
                ? fixed(d.get("rates"))
                : Rule.calendar(
                    rate(d.get("rate")),
                    zone(d.path("zone").asText("UTC")),
                    d.path("starts").asInt(1));
        rule = name == null ? rule : rule.name(name.asText());
        rule = unit == null ? rule : rule.unit(unit.asText());
        rule = d.path("anchored").asBoolean() ? rule.anchored() : rule;
        rule = cost == null ? rule : rule.cost(cost.longValue());
        return force ? rule.force() : rule;
      }
      case "throttle" -> {
        Rule.Throttle rule = Rule.throttle(rate(d.get("rate")));
        rule = name == null ? rule : rule.name(name.asText());
        rule = unit == null ? rule : rule.unit(unit.asText());
        rule = d.get("burst") == null ? rule : rule.burst(d.get("burst").longValue());
        return cost == null ? rule : rule.cost(cost.longValue());
      }
      case "lease" -> {
        Rule.Lease rule = Rule.lease(d.get("limit").longValue(), seconds(d.get("ttl")));
        rule = name == null ? rule : rule.name(name.asText());
        rule = unit == null ? rule : rule.unit(unit.asText());
        return d.get("holder") == null ? rule : rule.holder(d.get("holder").asText());
      }
      default -> throw new AssertionError("a rule of this kind is not known here: " + d);
    }
  }

  private static ZoneId zone(String name) {
    try {
      return ZoneId.of(name);
    } catch (java.time.DateTimeException error) {
      throw new IllegalArgumentException("the zone " + name + " is not known", error);
    }
  }

  @TestFactory
  Stream<DynamicTest> local() {
    return each(
        "local.json",
        "cases",
        Set.of("name", "processes", "steps"),
        one -> {
          Local local = new Local(one.get("processes").intValue());
          for (JsonNode step : one.get("steps")) {
            List<Keyed> rules = new ArrayList<>();
            for (JsonNode d : step.get("rules")) {
              String key =
                  ((com.fasterxml.jackson.databind.node.ObjectNode) d).remove("key").asText();
              rules.add(Keyed.of(key, rule(d)));
            }
            JsonNode expected = step.get("result");
            for (int i = 0; i < step.path("times").asInt(1); i++) {
              Decision decision = local.decide(rules);
              Duration wait = decision.retryAfter();
              String retry = wait == null ? "never" : wait.isZero() ? "none" : "later";
              assertThat(decision.allowed()).isEqualTo(expected.get("allowed").booleanValue());
              assertThat(retry).isEqualTo(expected.get("retry").asText());
              assertThat(decision.index()).isEqualTo(expected.path("index").asInt());
              List<Decision> states = rules.size() > 1 ? decision.each() : List.of(decision);
              for (int at = 0; at < states.size(); at++) {
                JsonNode state = expected.get("each").get(at);
                assertThat(states.get(at).allowed()).isEqualTo(state.get("allowed").booleanValue());
                assertThat(states.get(at).limit()).isEqualTo(state.get("limit").longValue());
                assertThat(states.get(at).used()).isEqualTo(state.get("used").longValue());
              }
            }
          }
        });
  }

  @TestFactory
  Stream<DynamicTest> rates() {
    return Stream.concat(
        each(
            "rates.json",
            "valid",
            Set.of("rates", "windows"),
            one -> {
              List<List<Long>> windows =
                  windows(one.get("rates")).stream().map(w -> List.of(w.limit(), w.ms())).toList();
              assertThat(windows)
                  .isEqualTo(
                      JSON.convertValue(
                          one.get("windows"),
                          new com.fasterxml.jackson.core.type.TypeReference<
                              List<List<Long>>>() {}));
            }),
        each(
            "rates.json",
            "invalid",
            Set.of("rates", "error", "typed"),
            one -> {
              if (!isTyped(one)) {
                refuses(one, () -> windows(one.get("rates")));
              }
            }));
  }

  // Words.

  private static final Set<String> WORDS =
      Set.of(
          "call",
          "key",
          "keys",
          "prefix",
          "rule",
          "rules",
          "options",
          "now_ms",
          "words",
          "module",
          "functions",
          "script",
          "error",
          "typed");
  private static final Set<String> OPTIONS =
      Set.of(
          "cost",
          "force",
          "at_ms",
          "holder",
          "holders",
          "units",
          "actual",
          "lease",
          "within_ms",
          "timeout_ms");

  /** The command of a case. */
  static Command command(JsonNode one) {
    JsonNode options = one.path("options");
    for (Iterator<String> names = options.fieldNames(); names.hasNext(); ) {
      assertThat(OPTIONS).contains(names.next());
    }
    String prefix = one.path("prefix").asText("");
    String key = prefix + one.path("key").asText("");
    Instant now =
        one.has("now_ms") ? Instant.ofEpochMilli(one.get("now_ms").longValue()) : Instant.now();
    Duration lease = options.has("lease") ? seconds(options.get("lease")) : Duration.ofMinutes(1);
    String call = one.get("call").asText();
    if (one.has("rules")) {
      List<Keyed> rules = new ArrayList<>();
      for (int i = 0; i < one.get("rules").size(); i++) {
        JsonNode d = one.get("rules").get(i);
        String at = one.get("keys").get(i).asText();
        rules.add(
            d.has("reserved")
                ? Keyed.reserved(at, (Rule.Windowed<?>) rule(d), d.get("reserved").longValue())
                : Keyed.of(at, rule(d)));
      }
      List<Keyed> keyed = call.equals("reserve_all") ? Keyed.held(rules, lease) : rules;
      return Command.all(prefix, Keyed.at(keyed, now));
    }
    Rule rule = null;
    if (one.has("rule")) {
      var d = ((com.fasterxml.jackson.databind.node.ObjectNode) one.get("rule")).deepCopy();
      if (options.has("cost")) {
        d.set("cost", options.get("cost"));
      }
      if (options.has("force")) {
        d.set("force", options.get("force"));
      }
      rule = rule(d);
    }
    switch (call) {
      case "release" -> {
        return Command.release(key, texts(options.get("holders")));
      }
      case "reset" -> {
        return Command.reset(key, rule == null ? List.of() : List.of(rule.at(now)));
      }
      default -> {}
    }
    assertThat(rule).isNotNull();
    return switch (call) {
      case "hit", "wait" ->
          // What waits by a rule without turns asks as hit does.
          call.equals("wait") && rule instanceof Rule.Queued queued
              ? Command.turn(key, queued, Duration.ZERO)
              : Command.hit(key, rule.at(now));
      case "turn" ->
          Command.turn(
              key, (Rule.Queued) rule, Duration.ofMillis(options.get("within_ms").longValue()));
      case "peek" -> Command.peek(key, rule.at(now));
      case "refund" ->
          Command.refund(
              key,
              options.has("at_ms") ? rule : rule.at(now),
              options.has("at_ms") ? Instant.ofEpochMilli(options.get("at_ms").longValue()) : null);
      case "acquire" -> {
        Rule.Lease held = (Rule.Lease) rule;
        yield Command.hit(
            key,
            (options.has("holder") ? held.holder(options.get("holder").asText()) : held).held());
      }
      case "reserve" -> Command.hit(key, reserved(rule, options, lease, now));
      case "settle", "cancel" -> {
        Rule held = reserved(rule, options, lease, now);
        yield Command.settle(
            key, held, call.equals("cancel") ? 0 : options.get("actual").longValue());
      }
      default -> throw new AssertionError("the call is not known here: " + call);
    };
  }

  private static Rule reserved(Rule rule, JsonNode options, Duration lease, Instant now) {
    Keyed open = Keyed.reserved("k", (Rule.Windowed<?>) rule, options.get("units").longValue());
    return Keyed.at(Keyed.held(List.of(open), lease), now).get(0).rule();
  }

  private static List<String> sent(Command command, Mode mode) {
    List<String> words = new ArrayList<>(command.sent(mode, false, true));
    for (int i = 0; i < words.size(); i++) {
      if (words.get(i).equals(Command.DIGEST)) {
        words.set(i, "SHA1");
      }
      if (i > 0 && words.get(i - 1).equals("HOLD") && words.get(i).matches("[0-9a-f]{32}")) {
        words.set(i, "HOLDER");
      }
    }
    return words;
  }

  @TestFactory
  Stream<DynamicTest> words() {
    Stream<DynamicTest> valid =
        Stream.of("valid", "reserve", "calendar")
            .flatMap(
                list ->
                    each(
                        "words.json",
                        list,
                        WORDS,
                        one ->
                            assertThat(sent(command(one), Mode.MODULE))
                                .containsExactly(texts(one.get("words")))));
    Stream<DynamicTest> modes =
        Stream.of("modes", "reserve_modes")
            .flatMap(
                list ->
                    each(
                        "words.json",
                        list,
                        WORDS,
                        one -> {
                          Command command = command(one);
                          for (Mode mode : List.of(Mode.MODULE, Mode.FUNCTIONS, Mode.SCRIPT)) {
                            List<String> sent = sent(command, mode);
                            assertThat(sent)
                                .containsExactly(
                                    texts(one.get(mode.name().toLowerCase(java.util.Locale.ROOT))));
                          }
                        }));
    Stream<DynamicTest> invalid =
        Stream.of("invalid", "reserve_invalid")
            .flatMap(
                list ->
                    each(
                        "words.json",
                        list,
                        WORDS,
                        one -> {
                          if (!isTyped(one)) {
                            refuses(one, () -> command(one));
                          }
                        }));
    return Stream.of(valid, modes, invalid).flatMap(tests -> tests);
  }

  @TestFactory
  Stream<DynamicTest> calendarsInWords() {
    return Stream.concat(
        each(
            "words.json",
            "calendar_ended",
            WORDS,
            one -> {
              Instant now = Instant.ofEpochMilli(one.get("now_ms").longValue());
              List<Keyed> rules = new ArrayList<>();
              if (one.has("rules")) {
                for (int i = 0; i < one.get("rules").size(); i++) {
                  rules.add(
                      new Keyed(one.get("keys").get(i).asText(), rule(one.get("rules").get(i))));
                }
              } else {
                rules.add(new Keyed(one.get("key").asText(), rule(one.get("rule"))));
              }
              List<Keyed> at = Keyed.at(rules, now);
              at = Keyed.at(at, Keyed.earliestEnd(at));
              Command command =
                  one.has("rules")
                      ? Command.all("", at)
                      : Command.hit(at.get(0).key(), at.get(0).rule());
              assertThat(sent(command, Mode.MODULE)).containsExactly(texts(one.get("words")));
            }),
        each(
            "words.json",
            "calendar_invalid",
            Set.of("rule", "error", "typed"),
            one -> {
              if (!isTyped(one)) {
                refuses(one, () -> rule(one.get("rule")));
              }
            }));
  }

  @TestFactory
  Stream<DynamicTest> calendar() {
    JsonNode zones = read("calendar.json").get("zones");
    Stream.Builder<DynamicTest> tests = Stream.builder();
    zones
        .properties()
        .forEach(
            zone ->
                zone.getValue()
                    .properties()
                    .forEach(
                        list -> {
                          if (!list.getKey().equals("changes")) {
                            tests.add(
                                DynamicTest.dynamicTest(
                                    zone.getKey() + " " + list.getKey(),
                                    () ->
                                        periods(
                                            zone.getKey(),
                                            list.getKey(),
                                            list.getValue(),
                                            zone.getValue().get("changes"))));
                          }
                        }));
    return tests.build();
  }

  private static void periods(String zone, String name, JsonNode runs, JsonNode changes) {
    String[] parts = name.split(":");
    Calendar calendar =
        Calendar.of(
            "1/" + parts[0], ZoneId.of(zone), parts.length > 1 ? Integer.parseInt(parts[1]) : 1);
    for (JsonNode run : runs) {
      long begins = run.get(0).longValue() * 1000;
      for (int i = 1; i < run.size(); i++) {
        long ends = begins + run.get(i).longValue() * 60_000;
        List<Long> times = new ArrayList<>(List.of(begins, ends - 1));
        for (JsonNode change : changes) {
          long at = change.longValue() * 1000;
          if (begins < at && at < ends - 1) {
            times.addAll(List.of(at - 1, at, at + 1));
          }
        }
        for (long time : times) {
          assertThat(calendar.end(Instant.ofEpochMilli(time)).toEpochMilli())
              .as("%s %s at %d", zone, name, time)
              .isEqualTo(ends);
        }
        begins = ends;
      }
    }
  }

  // Replies.

  private static @Nullable Object plain(JsonNode reply) {
    if (reply.isArray()) {
      List<@Nullable Object> items = new ArrayList<>();
      reply.forEach(item -> items.add(plain(item)));
      return items;
    }
    if (reply.isObject()) {
      List<@Nullable Object> items = new ArrayList<>();
      for (Map.Entry<String, JsonNode> item : reply.properties()) {
        items.add(item.getKey());
        items.add(plain(item.getValue()));
      }
      return items;
    }
    return reply.isNull()
        ? null
        : reply.isIntegralNumber() ? (Object) reply.longValue() : reply.asText();
  }

  private static Decision decision(JsonNode one, String field) {
    Object reply = plain(one.get(field));
    if (one.has("rules")) {
      List<Keyed> rules = new ArrayList<>();
      one.get("rules").forEach(d -> rules.add(new Keyed("k", rule(d))));
      return Replies.all(rules, reply);
    }
    return Replies.rule(rule(one.get("rule")), reply, one.get("call").asText().equals("turn"));
  }

  private static Map<String, @Nullable Object> told(Decision s, boolean isTurn) {
    Map<String, @Nullable Object> fields = new LinkedHashMap<>();
    fields.put("allowed", s.allowed());
    fields.put("limit", s.limit());
    fields.put("used", s.used());
    fields.put("remaining", s.remaining());
    Map<String, @Nullable Duration> waits = new LinkedHashMap<>();
    waits.put("retry", s.retryAfter());
    waits.put("next", s.nextAfter());
    waits.put("reset", s.resetAfter());
    waits.forEach(
        (name, wait) -> {
          fields.put(name + "_after_ms", wait == null ? null : wait.toMillis());
          fields.put(name + "_after", wait == null ? null : Decision.seconds(wait));
        });
    fields.put("window_ms", s.window().toMillis());
    fields.put("at_ms", s.at().toEpochMilli());
    if (isTurn) {
      fields.put("wait_ms", s.waitFor().toMillis());
    }
    return fields;
  }

  private static JsonNode json(@Nullable Object value) {
    try {
      return JSON.readTree(JSON.writeValueAsString(value));
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  @TestFactory
  Stream<DynamicTest> replies() {
    Set<String> fields =
        Set.of("name", "call", "rule", "rules", "resp2", "resp3", "result", "headers", "problem");
    Stream<DynamicTest> valid =
        Stream.of("valid", "calendar")
            .flatMap(
                list ->
                    each(
                        "replies.json",
                        list,
                        fields,
                        one -> {
                          boolean isTurn = one.get("call").asText().equals("turn");
                          for (String protocol : List.of("resp2", "resp3")) {
                            Decision decision = decision(one, protocol);
                            Map<String, @Nullable Object> told = told(decision, isTurn);
                            if (one.has("rules")) {
                              told.put("index", decision.index());
                            }
                            told.put(
                                "each",
                                decision.each().stream().map(s -> told(s, isTurn)).toList());
                            assertThat(json(told))
                                .isEqualTo(
                                    json(
                                        plain(one.get("result")) == null
                                            ? null
                                            : one.get("result")));
                            assertThat(json(decision.headers())).isEqualTo(one.get("headers"));
                            Decision.Problem problem = decision.problem();
                            try {
                              assertThat(
                                      problem == null
                                          ? JSON.nullNode()
                                          : JSON.readTree(problem.json()))
                                  .isEqualTo(one.get("problem"));
                            } catch (IOException error) {
                              throw new IllegalStateException(error);
                            }
                          }
                        }));
    Stream<DynamicTest> numbers =
        each(
            "replies.json",
            "numbers",
            Set.of("name", "call", "reply", "result"),
            one -> {
              Object reply = plain(one.get("reply"));
              if (one.get("call").asText().equals("refund")) {
                Refund refund = Replies.refund(reply);
                assertThat(
                        json(
                            Map.of(
                                "refunded",
                                refund.refunded(),
                                "used",
                                refund.used(),
                                "ttl",
                                refund.ttl().toSeconds())))
                    .isEqualTo(one.get("result"));
              } else {
                assertThat(Replies.number(reply)).isEqualTo(one.get("result").longValue());
              }
            });
    Stream<DynamicTest> invalid =
        each(
            "replies.json",
            "invalid",
            Set.of("name", "call", "rule", "rules", "reply"),
            one -> {
              Throwable error =
                  catchThrowable(
                      () -> {
                        switch (one.get("call").asText()) {
                          case "refund" -> Replies.refund(plain(one.get("reply")));
                          case "release", "reset" -> Replies.number(plain(one.get("reply")));
                          default -> decision(one, "reply");
                        }
                      });
              assertThat(error)
                  .isInstanceOf(ServerException.class)
                  .hasMessageContaining("cannot be read");
            });
    Stream<DynamicTest> settled =
        each(
            "replies.json",
            "settle",
            Set.of("name", "reply", "result"),
            one -> {
              Throwable error = catchThrowable(() -> Replies.settlement(plain(one.get("reply"))));
              if (one.get("result").asText().equals("done")) {
                assertThat(error).isNull();
              } else {
                assertThat(error).isInstanceOf(IllegalArgumentException.class);
              }
            });
    Stream<DynamicTest> unsettled =
        each(
            "replies.json",
            "settle_invalid",
            Set.of("name", "reply"),
            one ->
                assertThat(catchThrowable(() -> Replies.settlement(plain(one.get("reply")))))
                    .hasMessageContaining("cannot be read"));
    return Stream.of(valid, numbers, invalid, settled, unsettled).flatMap(tests -> tests);
  }

  @TestFactory
  Stream<DynamicTest> errors() {
    return Stream.concat(
        each(
            "errors.json",
            "lines",
            Set.of("line", "unavailable", "retry", "permanent", "probe", "cluster"),
            one -> {
              for (boolean cluster :
                  one.has("cluster")
                      ? List.of(one.get("cluster").asBoolean())
                      : List.of(true, false)) {
                ServerException.Meaning meaning =
                    new ServerException(one.get("line").asText()).meaning(cluster);
                ServerException.Meaning expected =
                    one.get("retry").asBoolean()
                        ? ServerException.Meaning.AGAIN
                        : one.get("unavailable").asBoolean()
                            ? ServerException.Meaning.REFUSES
                            : one.get("probe").asBoolean()
                                ? ServerException.Meaning.MISSING
                                : ServerException.Meaning.PERMANENT;
                assertThat(meaning).isEqualTo(expected);
                assertThat(meaning == ServerException.Meaning.PERMANENT)
                    .isEqualTo(one.get("permanent").asBoolean());
              }
            }),
        each(
            "errors.json",
            "meanings",
            Set.of("line", "means"),
            one -> {
              ServerException line = new ServerException(one.get("line").asText());
              String means = line.hasEnded() ? "ended" : line.isSettled() ? "settled" : "null";
              assertThat(means).isEqualTo(one.get("means").asText());
            }));
  }

  // Keys.

  private static String identity(JsonNode given) {
    if (!given.isArray()) {
      return given.asText();
    }
    StringBuilder text = new StringBuilder();
    given.forEach(part -> text.append(part.get(0).asText().repeat(part.get(1).asInt())));
    return text.toString();
  }

  @TestFactory
  Stream<DynamicTest> keys() {
    Stream<DynamicTest> keys =
        Stream.of("keys", "calendar")
            .flatMap(
                list ->
                    each(
                        "keys.json",
                        list,
                        Set.of("rule", "prefix", "identity", "policy", "key"),
                        one -> {
                          Rule rule = rule(one.get("rule"));
                          assertThat(rule.policy()).isEqualTo(one.get("policy").asText());
                          assertThat(
                                  Keys.keyFor(
                                      one.path("prefix").asText("rl:"),
                                      rule,
                                      identity(one.get("identity"))))
                              .isEqualTo(one.get("key").asText());
                        }));
    Stream<DynamicTest> halves =
        each(
            "keys.json",
            "halves",
            Set.of("units", "key"),
            one -> {
              StringBuilder text = new StringBuilder();
              one.get("units").forEach(unit -> text.append((char) unit.asInt()));
              assertThat(Keys.keyFor("rl:", Rule.sliding("1/s").name("api"), text.toString()))
                  .isEqualTo(one.get("key").asText());
            });
    Set<String> fields = Set.of("peer", "forwarded", "trusted", "ipv6_prefix", "identity");
    Stream<DynamicTest> addresses =
        each(
            "keys.json",
            "addresses",
            fields,
            one -> {
              String peer = one.get("peer").isNull() ? null : one.get("peer").asText();
              String identity = one.get("identity").isNull() ? null : one.get("identity").asText();
              assertThat(addresses(one).of(peer, List.of(texts(one.path("forwarded")))))
                  .isEqualTo(identity);
            });
    Stream<DynamicTest> invalid =
        each(
            "keys.json",
            "invalid",
            fields,
            one ->
                assertThat(catchThrowable(() -> addresses(one)))
                    .isInstanceOf(IllegalArgumentException.class));
    return Stream.of(keys, halves, addresses, invalid).flatMap(tests -> tests);
  }

  private static Addresses addresses(JsonNode one) {
    return new Addresses(List.of(texts(one.path("trusted"))), one.path("ipv6_prefix").asInt(64));
  }
}

package redisrl;

import static java.nio.charset.StandardCharsets.UTF_8;
import static redisrl.Rates.MAX_UNITS;
import static redisrl.Rates.check;
import static redisrl.Rates.within;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** A command of the module, in the form that all modes share. */
record Command(String name, List<String> keys, List<String> words) {
  static final String LIBRARY = source("library");
  static final String SCRIPT = source("script");
  static final String DIGEST =
      HexFormat.of().formatHex(Keys.digest("SHA-1", SCRIPT.getBytes(UTF_8)));
  static final int MAX_KEYS = 64;
  static final Duration LONGEST_TURN = Duration.ofHours(1);

  /** A library for FUNCTION LOAD and a script for EVALSHA have the same core. */
  private static String source(String kind) {
    return resource(kind + ".head.lua") + resource("core.lua") + resource(kind + ".tail.lua");
  }

  private static String resource(String name) {
    try (InputStream file = Objects.requireNonNull(Command.class.getResourceAsStream(name), name)) {
      return new String(file.readAllBytes(), UTF_8);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static Command of(String name, String key, List<String> words, String... more) {
    words.addAll(List.of(more));
    return new Command(name, List.of(key), words);
  }

  /** The words of a rule for a command that does not tell its kind. */
  private static List<String> named(Rule rule) {
    List<String> words = rule.words();
    words.add(0, rule.kind);
    return words;
  }

  static Command hit(String key, Rule rule) {
    return of(rule.kind, key, rule.checked(1).words(), rule.form());
  }

  static Command turn(String key, Rule.Queued queued, Duration within) {
    Rule rule = ((Rule) queued).checked(1);
    check(
        !within.isNegative() && within.compareTo(LONGEST_TURN) <= 0,
        "within must be from zero to an hour, not %s",
        within);
    check(!rule.options.force(), "a request that is forced waits for no turn");
    String ms = Long.toString(within.toMillis());
    return of(rule.kind, key, rule.words(), "WITHIN", ms, rule.form());
  }

  static Command peek(String key, Rule rule) {
    return of("PEEK", key, named(rule.checked(0)), rule.form());
  }

  static Command all(String prefix, List<Keyed> rules) {
    int count = rules.size();
    check(count > 0 && count <= MAX_KEYS, "a call takes 1 to 64 keys, not %s", count);
    List<String> words = new ArrayList<>();
    rules.forEach(each -> words.addAll(named(each.rule().checked(0))));
    words.add("FULL");
    return new Command("ALL", rules.stream().map(each -> prefix + each.key()).toList(), words);
  }

  static Command refund(String key, Rule rule, @Nullable Instant at) {
    if (at == null) {
      return of("REFUND", key, named(rule.checked(1)));
    }
    check(
        !at.isBefore(Instant.EPOCH) && !at.isAfter(Instant.ofEpochMilli(MAX_UNITS)),
        "the time of a refund must be from 0 to 9007199254740991 ms after 1970, and is %s",
        at);
    return of("REFUND", key, named(rule.checked(1).at(at)), "AT", Long.toString(at.toEpochMilli()));
  }

  static Command settle(String key, Rule rule, long actual) {
    within(0, MAX_UNITS, actual, "the actual units must be");
    return of("SETTLE", key, named(rule), "ACTUAL", Long.toString(actual));
  }

  static Command reset(String key, List<? extends Rule> rules) {
    Set<String> words = new LinkedHashSet<>();
    for (Rule rule : rules) {
      if (rule instanceof Rule.Fixed fixed) {
        fixed.checked(0);
        fixed.windows.forEach(window -> words.add(window.seconds()));
      }
    }
    if (!words.isEmpty()) {
      // A hold that stayed would later give back units of requests that came after the reset.
      words.add("HOLD");
    }
    return new Command("RESET", List.of(key), List.copyOf(words));
  }

  static Command release(String key, String... holders) {
    check(
        holders.length > 0 && !List.of(holders).contains(""),
        "release needs a holder, and each of them a name");
    return new Command("RELEASE", List.of(key), List.of(holders));
  }

  /** It changes nothing. */
  boolean reads() {
    return name.equals("PEEK");
  }

  /** It frees what is held, and may be sent at any time. */
  boolean givesBack() {
    return name.equals("RELEASE") || name.equals("SETTLE");
  }

  /**
   * The words for a server of this mode.
   *
   * @param whole the script itself goes, and not its digest
   * @param readOnly of a script that only reads the server is told so, which Redis 6.2 does not
   *     know
   */
  List<String> sent(Mode mode, boolean whole, boolean readOnly) {
    List<String> sent = new ArrayList<>();
    switch (mode) {
      case FUNCTIONS -> {
        sent.add(reads() ? "FCALL_RO" : "FCALL");
        sent.add("rl_" + name.toLowerCase(Locale.ROOT));
        sent.add(Integer.toString(keys.size()));
      }
      case SCRIPT -> {
        sent.add((whole ? "EVAL" : "EVALSHA") + (reads() && readOnly ? "_RO" : ""));
        sent.add(whole ? SCRIPT : DIGEST);
        sent.add(Integer.toString(keys.size()));
      }
      default -> {
        sent.add("RL." + name);
        if (name.equals("ALL")) {
          sent.add(Integer.toString(keys.size()));
        }
      }
    }
    sent.addAll(keys);
    if (mode == Mode.SCRIPT) {
      // The script is one for all commands.
      sent.add(name.toLowerCase(Locale.ROOT));
    }
    sent.addAll(words);
    return sent;
  }
}

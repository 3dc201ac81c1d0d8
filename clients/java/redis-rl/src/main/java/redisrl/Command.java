package redisrl;

import static redisrl.Rates.MAX_UNITS;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
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

/**
 * A command of the module, in the form that all modes share.
 *
 * @param reads it changes nothing
 */
record Command(String name, List<String> keys, List<String> words, boolean reads) {
  static final String LIBRARY = source("library");
  static final String SCRIPT = source("script");
  static final String DIGEST =
      HexFormat.of().formatHex(Keys.digest("SHA-1", SCRIPT.getBytes(StandardCharsets.UTF_8)));
  static final int MAX_KEYS = 64;
  static final Duration LONGEST_TURN = Duration.ofHours(1);

  /** A rule at a key. */
  record Keyed(String key, Rule rule) {}

  /** A library for FUNCTION LOAD and a script for EVALSHA have the same core. */
  private static String source(String kind) {
    return resource(kind + ".head.lua") + resource("core.lua") + resource(kind + ".tail.lua");
  }

  private static String resource(String name) {
    try (InputStream file = Objects.requireNonNull(Command.class.getResourceAsStream(name), name)) {
      return new String(file.readAllBytes(), StandardCharsets.UTF_8);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  static Command hit(String key, Rule rule) {
    rule.checked(1);
    return new Command(rule.kind(), List.of(key), joined(rule.words(), rule.form()), false);
  }

  static Command turn(String key, Rule.Queued queued, Duration within) {
    Rule rule = ((Rule) queued).checked(1);
    if (within.isNegative() || within.compareTo(LONGEST_TURN) > 0) {
      throw new IllegalArgumentException("within must be from zero to an hour, not " + within);
    }
    if (rule.isForced()) {
      throw new IllegalArgumentException("a request that is forced waits for no turn");
    }
    List<String> words =
        joined(rule.words(), "WITHIN", Long.toString(within.toMillis()), rule.form());
    return new Command(rule.kind(), List.of(key), words, false);
  }

  static Command peek(String key, Rule rule) {
    rule.checked(0);
    List<String> words = joined(List.of(rule.kind()), rule.words());
    words.add(rule.form());
    return new Command("PEEK", List.of(key), words, true);
  }

  static Command all(String prefix, List<Keyed> rules) {
    if (rules.isEmpty() || rules.size() > MAX_KEYS) {
      throw new IllegalArgumentException("a call takes 1 to 64 keys, not " + rules.size());
    }
    List<String> words = new ArrayList<>();
    for (Keyed each : rules) {
      words.add(each.rule().checked(0).kind());
      words.addAll(each.rule().words());
    }
    words.add("FULL");
    return new Command(
        "ALL", rules.stream().map(each -> prefix + each.key()).toList(), words, false);
  }

  static Command refund(String key, Rule rule, @Nullable Instant at) {
    List<String> words =
        joined(List.of(rule.checked(1).kind()), (at == null ? rule : at(rule, at)).words());
    if (at != null) {
      if (at.toEpochMilli() < 0) {
        throw new IllegalArgumentException(
            "the time of a refund must not be before 1970, and is " + at);
      }
      words.addAll(List.of("AT", Long.toString(at.toEpochMilli())));
    }
    return new Command("REFUND", List.of(key), words, false);
  }

  static Command settle(String key, Rule rule, long actual) {
    if (actual < 0 || actual > MAX_UNITS) {
      throw new IllegalArgumentException(
          "the actual units must be from 0 to " + MAX_UNITS + ", not " + actual);
    }
    List<String> words = joined(List.of(rule.kind()), rule.words());
    words.addAll(List.of("ACTUAL", Long.toString(actual)));
    return new Command("SETTLE", List.of(key), words, false);
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
    return new Command("RESET", List.of(key), List.copyOf(words), false);
  }

  static Command release(String key, List<String> holders) {
    if (holders.isEmpty()) {
      throw new IllegalArgumentException("release needs a holder");
    }
    return new Command("RELEASE", List.of(key), List.copyOf(holders), false);
  }

  /** A rule with the period of the calendar in which a time lies. */
  static Rule at(Rule rule, Instant time) {
    return rule instanceof Rule.Fixed fixed ? fixed.at(time) : rule;
  }

  static List<Keyed> at(List<Keyed> rules, Instant time) {
    return rules.stream().map(each -> new Keyed(each.key(), at(each.rule(), time))).toList();
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
        sent.add(reads ? "FCALL_RO" : "FCALL");
        sent.add("rl_" + name.toLowerCase(Locale.ROOT));
        sent.add(Integer.toString(keys.size()));
      }
      case SCRIPT -> {
        sent.add((whole ? "EVAL" : "EVALSHA") + (reads && readOnly ? "_RO" : ""));
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

  /** Where the keys begin in these words. */
  int firstKey(Mode mode) {
    return mode == Mode.MODULE ? name.equals("ALL") ? 2 : 1 : 3;
  }

  private static List<String> joined(List<String> words, String... more) {
    return joined(words, List.of(more));
  }

  private static List<String> joined(List<String> words, List<String> more) {
    List<String> joined = new ArrayList<>(words);
    joined.addAll(more);
    return joined;
  }
}

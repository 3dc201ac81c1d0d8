package redisrl;

import java.util.Locale;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * What the server has said against a call, and that does not pass by itself: WRONGTYPE, NOPERM, a
 * damaged log.
 */
public class ServerException extends RuntimeException {
  /** What an error line of the server means. */
  enum Meaning {
    /** The error is the caller's, and says nothing of the server. */
    PERMANENT,
    /** The server cannot decide now. */
    REFUSES,
    /** Nothing was counted, and the call is sent again. */
    AGAIN,
    /** The server does not have what the mode needs. */
    MISSING
  }

  /** Servers that are no Redis, and proxies, have words of their own. */
  private static final Pattern UNKNOWN_COMMAND =
      Pattern.compile(
          "^ERR .*(unknown command|unsupported command|command is not (available|supported))",
          Pattern.CASE_INSENSITIVE);

  private static final Set<String> REFUSALS =
      Set.of(
          "BUSY",
          "CLUSTERDOWN",
          "LOADING",
          "MASTERDOWN",
          "MISCONF",
          "NOREPLICAS",
          "OOM",
          "READONLY",
          "REDIRECT");

  ServerException(String line) {
    super(line);
  }

  String line() {
    return String.valueOf(getMessage());
  }

  Meaning meaning(boolean cluster) {
    String line = line();
    int space = line.indexOf(' ');
    String code = space < 0 ? line : line.substring(0, space);
    String lower = line.toLowerCase(Locale.ROOT);
    if (code.equals("TRYAGAIN")) {
      return Meaning.AGAIN;
    }
    boolean moved = cluster && (code.equals("MOVED") || code.equals("ASK"));
    if (REFUSALS.contains(code) || moved || line.startsWith("ERR max number of clients")) {
      return Meaning.REFUSES;
    }
    if (code.equals("NOSCRIPT")
        || isUnknownCommand()
        || lower.startsWith("err function not found")) {
      return Meaning.MISSING;
    }
    return Meaning.PERMANENT;
  }

  /** Said by a server that was the primary: another has taken its place. */
  boolean isReadOnly() {
    return line().startsWith("READONLY");
  }

  boolean isUnknownCommand() {
    return UNKNOWN_COMMAND.matcher(line()).find();
  }

  /** The window of a calendar is over on the server's clock. */
  boolean hasEnded() {
    return says("ERR the window has ended");
  }

  /** The holder of a reservation was settled. */
  boolean isSettled() {
    return says("ERR this hold is settled: a new request takes a new holder");
  }

  /** A server adds where in a script or a function an error was raised. */
  private boolean says(String text) {
    String line = line();
    return line.startsWith(text)
        && (line.length() == text.length() || ". ".indexOf(line.charAt(text.length())) >= 0);
  }
}

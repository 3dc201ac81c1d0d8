package redisrl;

import static java.nio.charset.StandardCharsets.UTF_8;
import static redisrl.Rates.given;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/** The keys of adapters. */
public final class Keys {
  static final int LONGEST = 512;
  static final int KEPT = 64;
  static final String MARK = "%sha256:";

  /** What is escaped in the policy of a key, and in its identity. */
  static final Pattern IN_POLICY = Pattern.compile("[%:{}]");

  // Half of a surrogate pair, which JSON may have, is no text that could be sent.
  private static final Pattern IN_TAG = Pattern.compile("[%{}\\p{Cs}]");
  private static final SecureRandom RANDOM = new SecureRandom();

  private Keys() {}

  /**
   * The key at which an adapter counts an identity under a rule, for peek, reset and so on: the
   * prefix ("rl:" unless the adapter has another), the policy and the identity in a hash tag. Other
   * rules have other keys, and all of one identity lie in one slot of a cluster. A long identity is
   * shortened to its beginning and a hash.
   */
  public static String keyFor(String prefix, Rule rule, String identity) {
    return key(prefix, rule.policy(), identity);
  }

  /** {@link #keyFor} for a rule that was declared on a route: one without a name is the route's. */
  static String keyFor(String prefix, Rule rule, String identity, @Nullable String route) {
    return route == null || rule.options.name() != null
        ? keyFor(prefix, rule, identity)
        : key(prefix, escaped(shortened(route) + " " + rule.described(), IN_POLICY), identity);
  }

  private static String key(String prefix, String policy, String identity) {
    return given(prefix, "the prefix")
        + policy
        + ":{"
        + shortened(escaped(given(identity, "an identity"), IN_TAG))
        + "}";
  }

  static String shortened(String text) {
    byte[] bytes = text.getBytes(UTF_8);
    if (bytes.length <= LONGEST) {
      return text;
    }
    int end = KEPT;
    while (end < bytes.length && (bytes[end] & 0xC0) == 0x80) {
      end++;
    }
    return new String(bytes, 0, end, UTF_8)
        + MARK
        + HexFormat.of().formatHex(digest("SHA-256", bytes));
  }

  static String escaped(String text, Pattern reserved) {
    return reserved
        .matcher(text)
        .replaceAll(found -> "%%%02X".formatted((int) found.group().charAt(0)));
  }

  static byte[] digest(String algorithm, byte[] bytes) {
    try {
      return MessageDigest.getInstance(algorithm).digest(bytes);
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error); // Every Java has it.
    }
  }

  /** What a command has for a text: in UTF-8, which has no halves of surrogate pairs. */
  static byte[] encoded(String text) {
    try {
      ByteBuffer encoded = UTF_8.newEncoder().encode(CharBuffer.wrap(text));
      byte[] bytes = new byte[encoded.remaining()];
      encoded.get(bytes);
      return bytes;
    } catch (CharacterCodingException error) {
      throw new IllegalArgumentException(
          "a key has half of a surrogate pair, which is no text", error);
    }
  }

  /** A holder that is nobody else's. */
  static String random() {
    byte[] bytes = new byte[16];
    RANDOM.nextBytes(bytes);
    return HexFormat.of().formatHex(bytes);
  }
}

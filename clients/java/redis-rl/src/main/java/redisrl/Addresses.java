package redisrl;

import static redisrl.Rates.within;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/** Who a request counts for: the address of its client. */
public final class Addresses {
  // Java resolves names, and takes 1.2 for an address: only what looks like one of these is handed
  // to it.
  private static final Pattern IPV4 =
      Pattern.compile("(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)(?:\\.(?!$)|$)){4}");
  private static final Pattern IPV6 = Pattern.compile("[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%.*)?");

  private static final Pattern ZEROS = Pattern.compile("(?:^|:)(0(?::0)+)(?::|$)");

  // An address, in brackets or with a port as X-Forwarded-For may have it.
  private static final Pattern HOST =
      Pattern.compile("^(?:\\[(.*)](?::\\d{1,5})?|([^:]*):\\d{1,5})$");

  private final List<Predicate<byte[]>> trusted;
  private final int ipv6Prefix;

  /**
   * @param trusted the addresses and networks of your proxies ({@code 10.0.0.0/8}), whose
   *     X-Forwarded-For is believed
   * @param ipv6Prefix how many bits of an IPv6 address count, 1 to 128: 64 is what one client
   *     usually has at least
   */
  public Addresses(List<String> trusted, int ipv6Prefix) {
    within(1, 128, ipv6Prefix, "the bits of an IPv6 address that count must be");
    this.ipv6Prefix = ipv6Prefix;
    this.trusted = trusted.stream().map(Addresses::network).toList();
  }

  private static Predicate<byte[]> network(String text) {
    String[] parts = text.split("/", 2);
    byte[] address = bytes(parts[0]);
    if (address != null) {
      int most = 8 * address.length;
      String bits = parts.length == 1 ? Integer.toString(most) : parts[1];
      if (bits.matches("\\d{1,3}") && Integer.parseInt(bits) <= most) {
        int kept = Integer.parseInt(bits);
        byte[] network = masked(address, kept);
        return other -> Arrays.equals(masked(other, kept), network);
      }
    }
    throw new IllegalArgumentException(
        "a trusted proxy is an address or a network such as 10.0.0.0/8, not \""
            + Rates.shortened(text)
            + "\"");
  }

  /**
   * The identity of a request with this peer and these lines of X-Forwarded-For; null if it has
   * none.
   */
  public @Nullable String of(@Nullable String peer, List<String> forwarded) {
    byte[] address = peer == null ? null : read(peer);
    String lines = String.join(",", forwarded);
    if (address != null && !lines.replace(",", "").isBlank()) {
      // The last proxy has added the last address. Of a trusted one, the address before it is
      // believed, too.
      String[] texts = lines.split(",", -1);
      for (int i = texts.length - 1; i >= 0 && address != null && trusts(address); i--) {
        address = read(texts[i].strip());
      }
    }
    return address == null ? null : text(address);
  }

  private boolean trusts(byte[] address) {
    return trusted.stream().anyMatch(network -> network.test(address));
  }

  private String text(byte[] address) {
    boolean isShort = address.length == 4;
    String text = compressed(isShort ? address : masked(address, ipv6Prefix));
    return isShort || ipv6Prefix == 128 ? text : text + "/" + ipv6Prefix;
  }

  private static byte @Nullable [] read(String text) {
    return bytes(HOST.matcher(text).replaceFirst("$1$2"));
  }

  private static byte @Nullable [] bytes(String text) {
    if (text.length() > 100 || !(IPV4.matcher(text).matches() || IPV6.matcher(text).matches())) {
      return null;
    }
    int zone = text.indexOf('%');
    try {
      // An IPv4 address in IPv6 form becomes one of IPv4 here.
      return InetAddress.getByName(zone < 0 ? text : text.substring(0, zone)).getAddress();
    } catch (UnknownHostException error) {
      return null;
    }
  }

  private static byte[] masked(byte[] address, int bits) {
    byte[] masked = address.clone();
    for (int i = 0; i < masked.length; i++) {
      int kept = Math.max(0, Math.min(8, bits - 8 * i));
      masked[i] &= (byte) (0xFF00 >> kept);
    }
    return masked;
  }

  /** As RFC 5952 writes it: the first of the longest runs of zeros, of two at least, is "::". */
  private static String compressed(byte[] address) {
    String text = plain(address);
    return ZEROS
        .matcher(text)
        .results()
        .max(Comparator.comparingInt(run -> run.group(1).length()))
        .map(run -> text.substring(0, run.start()) + "::" + text.substring(run.end()))
        .orElse(text);
  }

  private static String plain(byte[] address) {
    try {
      return InetAddress.getByAddress(address).getHostAddress();
    } catch (UnknownHostException error) {
      throw new IllegalStateException(error); // Of 4 or 16 bytes it is known.
    }
  }
}

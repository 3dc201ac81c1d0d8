package redisrl;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Any reply of RESP2 or RESP3 as a value: Long, String, List, Map or null. Those of Lettuce lose an
 * integer by itself.
 */
final class LettuceReply extends CommandOutput<byte[], byte[], Object> {
  /** An array or a map that is not complete. */
  private record Part(List<@Nullable Object> items, int size, boolean isMap) {
    Object whole() {
      if (!isMap) {
        return items;
      }
      Map<@Nullable Object, @Nullable Object> map = new LinkedHashMap<>();
      for (int i = 0; i + 1 < items.size(); i += 2) {
        map.put(items.get(i), items.get(i + 1));
      }
      return map;
    }
  }

  private final Deque<Part> open = new ArrayDeque<>();

  @SuppressWarnings("NullAway") // There is no reply yet.
  LettuceReply() {
    super(ByteArrayCodec.INSTANCE, null);
  }

  @SuppressWarnings("NullAway") // A reply can be nil.
  private void add(@Nullable Object value) {
    @Nullable Object complete = value;
    while (true) {
      Part part = open.peek();
      if (part == null) {
        output = complete;
        return;
      }
      part.items().add(complete);
      if (part.items().size() < part.size()) {
        return;
      }
      complete = open.pop().whole();
    }
  }

  private void begin(int size, boolean isMap) {
    if (size < 0) {
      add(null);
    } else if (size == 0) {
      add(isMap ? Map.of() : List.of());
    } else {
      open.push(new Part(new ArrayList<>(), size, isMap));
    }
  }

  @Override
  public void set(@Nullable ByteBuffer bytes) {
    add(bytes == null ? null : UTF_8.decode(bytes).toString());
  }

  @Override
  public void setSingle(@Nullable ByteBuffer bytes) {
    set(bytes);
  }

  @Override
  public void set(long integer) {
    add(integer);
  }

  @Override
  public void set(double number) {
    add(number);
  }

  @Override
  public void set(boolean value) {
    add(value);
  }

  @Override
  public void multi(int count) {
    begin(count, false);
  }

  @Override
  public void multiMap(int count) {
    begin(2 * count, true);
  }
}

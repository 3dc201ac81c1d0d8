package redisrl;

import static java.nio.charset.StandardCharsets.US_ASCII;

import io.lettuce.core.RedisURI;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/** A server of a test, with the module or without. The tests of the starter use it, too. */
public final class TestServer implements AutoCloseable {
  private static final String MODULE =
      Objects.requireNonNullElse(System.getenv("MODULE"), "../../../target/release/libredis_rl.so");
  private static final String SERVER =
      Objects.requireNonNullElse(System.getenv("SERVER"), "redis-server");

  public final int port;
  private final Path folder;
  private Process process;

  public TestServer(boolean withModule, String... options) throws Exception {
    try (ServerSocket probe = new ServerSocket(0)) {
      port = probe.getLocalPort();
    }
    folder = Files.createTempDirectory("redis-rl");
    start(withModule, options);
  }

  public void start(boolean withModule, String... options) throws Exception {
    List<String> command =
        new ArrayList<>(
            List.of(SERVER, "--port", "" + port, "--save", "", "--dir", folder.toString()));
    if (withModule) {
      command.addAll(List.of("--loadmodule", Path.of(MODULE).toRealPath().toString()));
    }
    boolean hasFile = options.length > 0 && options[0].endsWith(".conf");
    if (hasFile) {
      command.add(1, options[0]);
    }
    command.addAll(List.of(options).subList(hasFile ? 1 : 0, options.length));
    Path log = folder.resolve("log");
    process =
        new ProcessBuilder(command)
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()))
            .start();
    for (long until = System.nanoTime() + 30_000_000_000L; ; Thread.sleep(20)) {
      if (!process.isAlive() || System.nanoTime() > until) {
        throw new IllegalStateException(Files.readString(log));
      }
      try (Socket socket = new Socket("127.0.0.1", port)) {
        socket.getOutputStream().write("PING\r\n".getBytes(US_ASCII));
        String reply = new String(socket.getInputStream().readNBytes(5), US_ASCII);
        if (reply.equals("+PONG") || reply.equals("-NOAU")) {
          return;
        }
      } catch (IOException error) {
        // Not yet.
      }
    }
  }

  public RedisURI uri() {
    return RedisURI.create("127.0.0.1", port);
  }

  /** The reply of a command, as redis-cli would print it. */
  public String run(String... words) {
    try (Transport transport = LettuceTransport.create(uri())) {
      return String.valueOf(transport.send("", List.of(words), () -> false).get());
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  /** Loads the module while it runs. */
  public void load() throws Exception {
    run("MODULE", "LOAD", Path.of(MODULE).toRealPath().toString());
  }

  public void signal(String name) throws Exception {
    new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
  }

  public void kill() throws Exception {
    process.destroyForcibly().waitFor();
  }

  @Override
  public void close() throws Exception {
    kill();
    try (var files = Files.walk(folder)) {
      files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
    }
  }
}

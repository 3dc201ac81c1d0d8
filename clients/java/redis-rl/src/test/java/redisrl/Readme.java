package redisrl;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** The README's programs, compiled and run by the tests of all modules. */
public final class Readme {
  private Readme() {}

  /** The blocks of code in a language, as they stand. */
  public static List<String> blocks(String language) throws Exception {
    return Pattern.compile("```" + language + "\n(.*?)```", Pattern.DOTALL)
        .matcher(Files.readString(Path.of("../README.md")))
        .results()
        .map(block -> block.group(1))
        .toList();
  }

  /** Compiles a program in a folder, and loads its classes from there. */
  public static URLClassLoader compiled(Path folder, String program) throws Exception {
    var name = Pattern.compile("class (\\w+)").matcher(program);
    assertThat(name.find()).isTrue();
    Path file = folder.resolve(name.group(1) + ".java");
    Files.writeString(file, program);
    int result =
        ToolProvider.getSystemJavaCompiler()
            .run(
                null,
                null,
                null,
                "-proc:none",
                "-classpath",
                System.getProperty("java.class.path"),
                "-d",
                folder.toString(),
                file.toString());
    assertThat(result).isZero();
    return new URLClassLoader(new URL[] {folder.toUri().toURL()});
  }

  /** What a program prints. */
  public static String printed(Class<?> program) throws Exception {
    ByteArrayOutputStream printed = new ByteArrayOutputStream();
    PrintStream before = System.out;
    System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
    try {
      program.getMethod("main", String[].class).invoke(null, (Object) new String[0]);
    } finally {
      System.setOut(before);
    }
    return printed.toString(StandardCharsets.UTF_8);
  }
}

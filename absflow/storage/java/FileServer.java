package absflow;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.PrivilegedAction;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.spark.SparkEnv;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.slf4j.LoggerFactory;

/**
 * Hadoop's file systems for the Python processes beside this JVM, over a socket on loopback.
 *
 * <p>The JVM has the clients, the credentials and the tokens that are renewed. Where it listens, and
 * the token without which it says nothing, are in a file of the executor's local directory that its
 * user alone can read, which Spark names to its Python workers.
 */
public final class FileServer {
  /** Of the file in the executor's first local directory. */
  public static final String NAME = "absflow-files";

  private static final SecureRandom RANDOM = new SecureRandom();
  private static byte[] token;
  private static ServerSocket server;
  private static UserGroupInformation user;
  private static String announced;

  private FileServer() {}

  /**
   * Serve, if that was not begun.
   *
   * @return the file that says where.
   */
  public static synchronized String start() throws IOException {
    String folder = SparkEnv.get().blockManager().diskBlockManager().localDirsString()[0];
    String place = folder + "/" + NAME;
    if (server == null) {
      StringBuilder made = new StringBuilder();
      for (int each = 0; each < 4; each++) {
        made.append(String.format("%016x", new Object[] {Long.valueOf(RANDOM.nextLong())}));
      }
      token = made.toString().getBytes(StandardCharsets.US_ASCII);
      user = UserGroupInformation.getCurrentUser();
      server = new ServerSocket(0, 64, InetAddress.getLoopbackAddress());
      begin(new Accepting());
    }
    // A SparkContext that follows another in one JVM has a directory of its own.
    if (!place.equals(announced)) {
      announce(place);
      announced = place;
    }
    return place;
  }

  /**
   * What a session's conf says of file systems beyond what every JVM of the application knows.
   *
   * @return names and values in turns.
   */
  public static String[] options(Configuration session) {
    Configuration known = SparkHadoopUtil.get().newConfiguration(SparkEnv.get().conf());
    ArrayList found = new ArrayList();
    Iterator all = session.iterator();
    while (all.hasNext()) {
      String name = (String) ((Map.Entry) all.next()).getKey();
      String value = session.getRaw(name);
      if (!name.startsWith("spark.") && value != null && !value.equals(known.getRaw(name))) {
        found.add(name);
        found.add(value);
      }
    }
    return (String[]) found.toArray(new String[0]);
  }

  private static void announce(String place) throws IOException {
    Path aside = new File(place + ".tmp").toPath();
    Files.deleteIfExists(aside);
    FileAttribute mine =
        PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));
    Files.createFile(aside, new FileAttribute[] {mine});
    String text = server.getLocalPort() + " " + new String(token, StandardCharsets.US_ASCII);
    Files.write(aside, text.getBytes(StandardCharsets.US_ASCII), new OpenOption[0]);
    CopyOption whole = StandardCopyOption.ATOMIC_MOVE;
    Files.move(aside, new File(place).toPath(), new CopyOption[] {whole});
  }

  private static void begin(Runnable what) {
    Thread thread = new Thread(what, "absflow-files");
    thread.setDaemon(true);
    thread.start();
  }

  /** Takes connections for as long as the JVM is there. */
  private static final class Accepting implements Runnable {
    public void run() {
      while (true) {
        try {
          Socket socket = server.accept();
          socket.setTcpNoDelay(true);
          Configuration conf = SparkHadoopUtil.get().newConfiguration(SparkEnv.get().conf());
          begin(new AsUser(new Served(socket, token, conf)));
        } catch (Exception error) {
          LoggerFactory.getLogger(FileServer.class)
              .warn("a connection of a Python process was not taken", error);
        }
      }
    }
  }

  /** As the user who runs the tasks, whose tokens Spark renews. */
  private static final class AsUser implements Runnable {
    private final Runnable what;

    AsUser(Runnable what) {
      this.what = what;
    }

    public void run() {
      final Runnable what = this.what;
      user.doAs(
          new PrivilegedAction() {
            public Object run() {
              what.run();
              return null;
            }
          });
    }
  }
}

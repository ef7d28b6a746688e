package absflow;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import org.apache.commons.io.IOUtils;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A connection of a Python process: its requests, one after the other.
 *
 * <p>A request is a letter, a path and, for W, A and C, bytes; for P, which is R of a part, where
 * that begins, in eight bytes, and its size. The answer is a letter (Y: done; N: there is none, or it
 * is another's; E: an error, and its text), and of R, P and L what was found.
 * Numbers are four bytes, texts their length and UTF-8. Bytes are chunks, each behind its length,
 * and a length of 0; or of -1, and then the text of an error.
 */
final class Served implements Runnable {
  private static final int CHUNK = 1 << 20;

  private final Socket socket;
  private final byte[] token;
  private final Configuration conf;
  private final Placed.Renames renames;
  private DataInputStream in;
  private DataOutputStream out;

  Served(Socket socket, byte[] token, Configuration conf) {
    this.socket = socket;
    this.token = token;
    this.conf = conf;
    this.renames = new Placed.Renames(conf);
  }

  public void run() {
    try {
      in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
      out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream()));
      byte[] said = new byte[token.length];
      in.readFully(said);
      if (!java.security.MessageDigest.isEqual(said, token)) {
        return;
      }
      for (int left = in.readInt(); left > 0; left--) {
        String name = text();
        conf.set(name, text());
      }
      while (true) {
        answer((char) in.readByte());
        out.flush();
      }
    } catch (IOException over) {
      // The process has all it wanted, or is gone. What a request failed with was its answer.
    } finally {
      IOUtils.closeQuietly(socket);
    }
  }

  private void answer(char what) throws IOException {
    String name = text();
    long begin = what == 'P' ? in.readLong() : 0;
    long most = what == 'P' ? in.readInt() : Long.MAX_VALUE;
    Given given = new Given(in, "WAC".indexOf(what) >= 0);
    String failed = null;
    boolean done = false;
    try {
      Path path = new Path(name);
      FileSystem fs = Placed.of(path, conf);
      if (what == 'R' || what == 'P') {
        read(fs, path, begin, most);
        return;
      }
      if (what == 'L') {
        list(fs, path);
        return;
      }
      done = ask(what, fs, path, given);
    } catch (Exception error) {
      failed = error.toString();
    }
    // A request that failed midway has bytes left, in front of the next one.
    given.skipRest();
    out.writeByte(failed != null ? 'E' : done ? 'Y' : 'N');
    if (failed != null) {
      write(failed);
    }
  }

  private boolean ask(char what, FileSystem fs, Path path, InputStream given) throws IOException {
    switch (what) {
      case 'W':
        Placed.replace(fs, path, given, renames);
        return true;
      case 'A':
        Placed.add(fs, path, given);
        return true;
      case 'C':
        return Placed.create(fs, path, IOUtils.toByteArray(given), renames);
      case 'E':
        return exists(fs, path);
      case 'D':
        return fs.delete(path, false);
      case 'X':
        OwnLogs.dropped(fs.makeQualified(path).toString());
        return fs.delete(path, true);
      case 'M':
        return fs.mkdirs(path);
      default:
        throw new IOException("there is no request " + what);
    }
  }

  private static boolean exists(FileSystem fs, Path path) throws IOException {
    try {
      return fs.exists(path);
    } catch (IOException error) {
      if (Placed.isAbsent(error)) {
        return false;
      }
      throw error;
    }
  }

  private void read(FileSystem fs, Path path, long begin, long most) throws IOException {
    byte[] chunk = new byte[CHUNK];
    FSDataInputStream from = Placed.open(fs, path);
    if (from == null) {
      out.writeByte('N');
      return;
    }
    boolean begun = false;
    try {
      if (begin > 0) {
        from.seek(begin);
      }
      long left = most;
      int size = IOUtils.read(from, chunk, 0, (int) Math.min(CHUNK, left));
      out.writeByte('Y');
      begun = true;
      while (size > 0) {
        out.writeInt(size);
        out.write(chunk, 0, size);
        left -= size;
        size = IOUtils.read(from, chunk, 0, (int) Math.min(CHUNK, left));
      }
      out.writeInt(0);
    } catch (IOException error) {
      if (!begun) {
        throw error;
      }
      out.writeInt(-1);
      write(error.toString());
    } finally {
      IOUtils.closeQuietly(from);
    }
  }

  private void list(FileSystem fs, Path path) throws IOException {
    FileStatus[] found = new FileStatus[0];
    try {
      found = fs.listStatus(path);
    } catch (IOException error) {
      if (!Placed.isAbsent(error)) {
        throw error;
      }
    }
    if (found.length == 1 && found[0].getPath().equals(fs.makeQualified(path))) {
      found = new FileStatus[0]; // it is a file
    }
    out.writeByte('Y');
    out.writeInt(found.length);
    for (FileStatus each : found) {
      write(each.getPath().getName());
    }
  }

  private String text() throws IOException {
    byte[] bytes = new byte[in.readInt()];
    in.readFully(bytes);
    return new String(bytes, StandardCharsets.UTF_8);
  }

  private void write(String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    out.writeInt(bytes.length);
    out.write(bytes);
  }

  /** The bytes of a request. */
  private static final class Given extends InputStream {
    private final DataInputStream in;
    private int left;
    private boolean ended;

    Given(DataInputStream in, boolean any) {
      this.in = in;
      this.ended = !any;
    }

    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 255;
    }

    public int read(byte[] into, int at, int most) throws IOException {
      if (left == 0 && !ended) {
        left = in.readInt();
        ended = left == 0;
      }
      if (ended) {
        return -1;
      }
      int size = in.read(into, at, Math.min(most, left));
      if (size < 0) {
        throw new java.io.EOFException("the process that writes is gone");
      }
      left -= size;
      return size;
    }

    void skipRest() throws IOException {
      byte[] chunk = new byte[CHUNK];
      while (!ended) {
        read(chunk, 0, CHUNK);
      }
    }
  }
}

package absflow;

import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.UUID;
import org.apache.commons.io.IOUtils;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotDirectoryException;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * Files that are put in place by Hadoop's file systems.
 *
 * <p>A file system shows a file while it is written, so it is written aside and renamed; an object
 * store has an object whole when its stream is closed.
 */
final class Placed {
  private static final int CHUNK = 1 << 20;
  private static final String LOOK = "dfs.client.block.write.locateFollowingBlock.";
  private static final String WAIT = LOOK + "initial.delay.ms";
  private static final String LOOKS = LOOK + "retries";
  private static final HashMap own = new HashMap();

  private Placed() {}

  /**
   * The file system of a path. HDFS's is one of our own: that of the application may have been made
   * before the session said how long its client waits (wait_little in storage/session.py).
   */
  static FileSystem of(Path path, Configuration conf) throws IOException {
    if (!"hdfs".equals(path.toUri().getScheme())) {
      return path.getFileSystem(conf);
    }
    String key =
        path.toUri().getAuthority()
            + " " + UserGroupInformation.getCurrentUser()
            + " " + conf.get(WAIT) + " " + conf.get(LOOKS);
    synchronized (own) {
      if (!own.containsKey(key)) {
        own.put(key, FileSystem.newInstance(path.toUri(), conf));
      }
      return (FileSystem) own.get(key);
    }
  }

  /** Put a file in place whole, in the place of an older one if there is one. */
  static void replace(FileSystem fs, Path path, InputStream data, Renames renames)
      throws IOException {
    if (S3Create.s3(fs) != null) {
      copy(data, S3Create.replace(fs, path));
    } else if (isWholeAtClose(fs)) {
      copy(data, fs.create(path, true));
    } else {
      rename(fs, path, data, Options.Rename.OVERWRITE, renames);
    }
  }

  /** Write a file whose name nobody else knows yet. */
  static void add(FileSystem fs, Path path, InputStream data) throws IOException {
    copy(data, S3Create.s3(fs) != null ? S3Create.replace(fs, path) : fs.create(path, false));
  }

  /**
   * Put a file in place whole if there is none; HDFS, ADLS and GCS see to it that one of several
   * that do so at once has it, as S3 does.
   *
   * @return false if there is one with other bytes. With these very bytes it counts as put, for an
   *     answer may have been lost.
   */
  static boolean create(FileSystem fs, Path path, byte[] data, Renames renames)
      throws IOException {
    if (S3Create.s3(fs) != null) {
      return S3Create.put(fs, path, data);
    }
    try {
      InputStream in = new ByteArrayInputStream(data);
      if (isWholeAtClose(fs)) {
        copy(in, fs.create(path, false));
      } else {
        rename(fs, path, in, Options.Rename.NONE, renames);
      }
      return true;
    } catch (IOException error) {
      InputStream there = open(fs, path);
      if (there == null) {
        throw error;
      }
      try {
        return Arrays.equals(IOUtils.toByteArray(there), data);
      } finally {
        there.close();
      }
    }
  }

  /** The bytes of a file, or null if there is none. */
  static FSDataInputStream open(FileSystem fs, Path path) throws IOException {
    try {
      return fs.open(path);
    } catch (IOException error) {
      if (isAbsent(error)) {
        return null;
      }
      throw error;
    }
  }

  /** Whether an error says that there is no such file; what is above it may be a file. */
  static boolean isAbsent(IOException error) {
    return error instanceof FileNotFoundException
        || error instanceof ParentNotDirectoryException
        || error instanceof PathIsNotDirectoryException
        || String.valueOf(error.getMessage()).contains("(is not a directory)");
  }

  private static boolean isWholeAtClose(FileSystem fs) {
    return fs.getUri().getScheme().equals("gs");
  }

  private static void rename(
      FileSystem fs, Path path, InputStream data, Options.Rename how, Renames renames)
      throws IOException {
    // Hidden, for a kill may leave it there.
    String name = "." + path.getName() + "." + UUID.randomUUID() + ".tmp";
    Path aside = new Path(path.getParent(), name);
    try {
      copy(data, fs.create(aside, false));
      renames.at(path).rename(aside, path, new Options.Rename[] {how});
    } catch (IOException error) {
      fs.delete(aside, false);
      throw error;
    }
  }

  /**
   * What renames, for each file system of one conf; used by one thread. It is kept, for it has a
   * client of its own, which takes longer to make than a rename.
   */
  static final class Renames {
    private final Configuration conf;
    private final HashMap made = new HashMap();

    Renames(Configuration conf) {
      this.conf = conf;
    }

    FileContext at(Path path) throws IOException {
      String place = path.toUri().getScheme() + "://" + path.toUri().getAuthority();
      if (!made.containsKey(place)) {
        made.put(place, FileContext.getFileContext(path.toUri(), conf));
      }
      return (FileContext) made.get(place);
    }
  }

  private static void copy(InputStream from, FSDataOutputStream to) throws IOException {
    byte[] chunk = new byte[CHUNK];
    try {
      int size;
      while ((size = from.read(chunk)) > 0) {
        to.write(chunk, 0, size);
      }
    } catch (IOException error) {
      abandon(to);
      throw error;
    }
    to.close();
  }

  /** An object store would put what there is of it in place. */
  private static void abandon(FSDataOutputStream out) {
    OutputStream wrapped = out.getWrappedStream();
    if (wrapped instanceof Abortable) {
      ((Abortable) wrapped).abort();
    } else {
      IOUtils.closeQuietly(out);
    }
  }
}

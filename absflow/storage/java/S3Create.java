package absflow;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import org.apache.commons.io.IOUtils;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Objects of S3 that are put where there is none, or in the place of what is there. */
public final class S3Create {
  private S3Create() {}

  /** The file system of a path if it is S3's, else null. */
  public static FileSystem s3(FileSystem fs) {
    return fs.getUri().getScheme().startsWith("s3") ? fs : null;
  }

  /**
   * Put an object in place whole by one request, which S3 refuses if there is one.
   *
   * @return false if there is one with other bytes. With these very bytes it counts as put: S3
   *     refuses what it has taken when it is asked twice because an answer was lost. So of two
   *     writers with the same bytes both believe that they were first.
   */
  public static boolean put(FileSystem fs, Path path, byte[] data) throws IOException {
    try {
      FSDataOutputStreamBuilder builder = fs.createFile(path);
      // No look before it: the condition is S3's.
      builder.overwrite(true);
      builder.must("fs.option.create.conditional.overwrite", true);
      FSDataOutputStream out = (FSDataOutputStream) builder.build();
      out.write(data);
      out.close();
      return true;
    } catch (IOException error) {
      byte[] there = read(fs, path);
      if (there == null) {
        throw error;
      }
      return Arrays.equals(there, data);
    }
  }

  /** A stream that puts an object in place, whatever is there, when it is closed. */
  public static FSDataOutputStream replace(FileSystem fs, Path path) throws IOException {
    FSDataOutputStreamBuilder builder = fs.createFile(path);
    builder.overwrite(true);
    builder.must("fs.s3a.create.performance", true);
    return (FSDataOutputStream) builder.build();
  }

  /** What a listing would say of a file that was put just now. */
  static FileStatus status(Path path, long size) {
    return new FileStatus(size, false, 1, 1 << 25, System.currentTimeMillis(), path);
  }

  private static byte[] read(FileSystem fs, Path path) throws IOException {
    FSDataInputStream in;
    try {
      in = fs.open(path);
    } catch (FileNotFoundException error) {
      return null;
    }
    try {
      return IOUtils.toByteArray(in);
    } finally {
      in.close();
    }
  }
}

package absflow;

import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import java.util.zip.CRC32;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * The files of a query's checkpoint; on a local disk one takes the place of an older one.
 *
 * <p>Spark's own by a FileSystem leaves the older one there and says nothing (with Hive's jars that
 * is Hive's ProxyLocalFileSystem): its state store then keeps what the first run of a batch has made,
 * while the query goes on with the second. Spark's own by a FileContext replaces. Both start a
 * process for each file, and one for its checksum, where Hadoop has no native library.
 */
public class LocalCheckpointFiles extends FileSystemBasedCheckpointFileManager {
  public LocalCheckpointFiles(Path path, Configuration conf) {
    super(path, conf);
  }

  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    if (!(fs() instanceof LocalFileSystem)) {
      return super.createAtomic(path, overwrite);
    }
    LocalFileSystem local = (LocalFileSystem) fs();
    File file = local.pathToFile(path);
    File checksum = local.pathToFile(local.getChecksumFile(path));
    try {
      Files.createDirectories(file.getParentFile().toPath());
      File aside = aside(file);
      OutputStream out = new BufferedOutputStream(new FileOutputStream(aside));
      return new Written(file, checksum, aside, new Summed(out), overwrite);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Hidden, for a kill may leave it there. */
  private static File aside(File file) {
    return new File(file.getParentFile(), "." + file.getName() + "." + UUID.randomUUID() + ".tmp");
  }

  private static void replace(File from, File to) throws IOException {
    CopyOption[] whole = {StandardCopyOption.ATOMIC_MOVE};
    Files.move(from.toPath(), to.toPath(), whole);
  }

  /** It is there once it is closed, and behind it what Hadoop compares it with when it is read. */
  public static final class Written extends CancellableFSDataOutputStream {
    private final File file;
    private final File checksum;
    private final File aside;
    private final Summed out;
    private final boolean overwrite;
    private boolean ended;

    public Written(File file, File checksum, File aside, Summed out, boolean overwrite) {
      super(out);
      this.file = file;
      this.checksum = checksum;
      this.aside = aside;
      this.out = out;
      this.overwrite = overwrite;
    }

    public void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      super.close();
      if (!overwrite && file.exists()) {
        Files.deleteIfExists(aside.toPath());
        throw new FileAlreadyExistsException(file.toString());
      }
      // A file without a checksum is read unchecked; one with another's cannot be read.
      Files.deleteIfExists(checksum.toPath());
      replace(aside, file);
      File sums = LocalCheckpointFiles.aside(checksum);
      Files.write(sums.toPath(), out.sums(), new java.nio.file.OpenOption[0]);
      replace(sums, checksum);
    }

    public void cancel() {
      if (ended) {
        return;
      }
      ended = true;
      try {
        super.close();
        Files.deleteIfExists(aside.toPath());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  /** Sums up what is written, as Hadoop's ChecksumFileSystem: a CRC-32 of each 512 bytes. */
  static final class Summed extends OutputStream {
    private static final int CHUNK = 512;

    private final OutputStream out;
    private final ByteArrayOutputStream sums = new ByteArrayOutputStream();
    private final DataOutputStream numbers = new DataOutputStream(sums);
    private final CRC32 sum = new CRC32();
    private int left = CHUNK;

    Summed(OutputStream out) throws IOException {
      this.out = out;
      numbers.writeBytes("crc\0");
      numbers.writeInt(CHUNK);
    }

    public void write(int one) throws IOException {
      write(new byte[] {(byte) one}, 0, 1);
    }

    public void write(byte[] data, int from, int count) throws IOException {
      out.write(data, from, count);
      while (count > 0) {
        int now = Math.min(left, count);
        sum.update(data, from, now);
        from += now;
        count -= now;
        left -= now;
        if (left == 0) {
          next();
        }
      }
    }

    private void next() throws IOException {
      numbers.writeInt((int) sum.getValue());
      sum.reset();
      left = CHUNK;
    }

    /** The bytes of the file of checksums; asked for once, when all is written. */
    byte[] sums() throws IOException {
      if (left < CHUNK) {
        next();
      }
      return sums.toByteArray();
    }

    public void flush() throws IOException {
      out.flush();
    }

    public void close() throws IOException {
      out.close();
    }
  }
}

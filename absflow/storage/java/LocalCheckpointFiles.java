package absflow;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * The files of a query's checkpoint, of which a local one takes the place of an older one.
 *
 * <p>Spark's own by a FileSystem leaves the older one there and says nothing: its state store then
 * keeps what the first run of a batch has made, while the query goes on with the second. Spark's own
 * by a FileContext replaces, but starts two processes for each file where Hadoop has no native
 * library.
 */
public class LocalCheckpointFiles extends FileSystemBasedCheckpointFileManager {
  public LocalCheckpointFiles(Path path, Configuration conf) {
    super(path, conf);
  }

  public void renameTempFile(Path from, Path to, boolean overwrite) {
    if (!overwrite || !(fs() instanceof LocalFileSystem)) {
      super.renameTempFile(from, to, overwrite);
      return;
    }
    LocalFileSystem local = (LocalFileSystem) fs();
    try {
      // A file without a checksum is read unchecked; one with another's cannot be read.
      File checksum = local.pathToFile(local.getChecksumFile(to));
      Files.deleteIfExists(checksum.toPath());
      move(local.pathToFile(from), local.pathToFile(to));
      File aside = local.pathToFile(local.getChecksumFile(from));
      if (aside.exists()) {
        move(aside, checksum);
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static void move(File from, File to) throws IOException {
    CopyOption[] whole = {StandardCopyOption.ATOMIC_MOVE};
    Files.move(from.toPath(), to.toPath(), whole);
  }
}

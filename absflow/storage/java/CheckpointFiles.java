package absflow;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * The files of a query's checkpoint; on S3 each is one request, anywhere else as Spark has it.
 *
 * <p>An executor makes one for a stage's state in front of the Python worker's function, so the
 * worker finds the file server running.
 */
public class CheckpointFiles extends FileContextBasedCheckpointFileManager {
  private final FileSystem fs;
  private final FileSystemBasedCheckpointFileManager local;

  public CheckpointFiles(Path path, Configuration conf) throws IOException {
    super(path, conf);
    fs = S3Create.s3(path.getFileSystem(conf));
    // A FileContext starts two processes for each local file where Hadoop has no native library.
    boolean isLocal = path.getFileSystem(conf).getUri().getScheme().equals("file");
    local = isLocal ? new FileSystemBasedCheckpointFileManager(path, conf) : null;
    FileServer.start();
  }

  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    if (local != null) {
      return local.createAtomic(path, overwrite);
    }
    if (fs == null) {
      return super.createAtomic(path, overwrite);
    }
    try {
      return overwrite
          ? new Replaced(S3Create.replace(fs, path))
          : new Created(fs, path, new ByteArrayOutputStream());
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  /**
   * It is there once it is closed; whether there is another is asked then. Two drivers that both
   * have replayed a batch may write the same commit of it, and go on; the offsets of the next
   * batch, in which its time stands, are one's.
   */
  public static final class Created extends CancellableFSDataOutputStream {
    private final FileSystem fs;
    private final Path path;
    private final ByteArrayOutputStream data;
    private boolean ended;

    public Created(FileSystem fs, Path path, ByteArrayOutputStream data) {
      super(data);
      this.fs = fs;
      this.path = path;
      this.data = data;
    }

    public void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      super.close();
      if (!S3Create.put(fs, path, data.toByteArray())) {
        throw new FileAlreadyExistsException(path.toString());
      }
    }

    public void cancel() {
      ended = true;
    }
  }

  /** It is there once it is closed. */
  public static final class Replaced extends CancellableFSDataOutputStream {
    private final FSDataOutputStream out;
    private boolean ended;

    public Replaced(FSDataOutputStream out) {
      super(out);
      this.out = out;
    }

    public void close() throws IOException {
      if (!ended) {
        ended = true;
        super.close();
      }
    }

    public void cancel() {
      if (!ended) {
        ended = true;
        out.abort();
      }
    }
  }
}

package absflow;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * The files of a query's checkpoint; on S3 each is one request, anywhere else as Spark has it.
 *
 * <p>An executor makes one for a stage's state in front of the Python worker's function, so the
 * worker finds the file server running.
 */
public class CheckpointFiles extends LocalCheckpointFiles {
  private static final PathFilter ALL =
      new PathFilter() {
        public boolean accept(Path path) {
          return true;
        }
      };

  private final FileSystem fs;
  private final Path folder;
  // What is in the folder of a log on S3, once it was listed; null before, and of other folders.
  private TreeMap known;
  private final FileContextBasedCheckpointFileManager byContext;

  public CheckpointFiles(Path path, Configuration conf) throws IOException {
    super(path, conf);
    FileSystem any = path.getFileSystem(conf);
    fs = S3Create.s3(any);
    // A FileContext makes a client of its own, and where Hadoop has no native library it starts two
    // processes for each local file. But on HDFS it alone can replace a file by a rename.
    boolean needed = fs == null && !any.getUri().getScheme().equals("file");
    byContext = needed ? new FileContextBasedCheckpointFileManager(path, conf) : null;
    folder = path;
    FileServer.start();
  }

  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    if (byContext != null) {
      return byContext.createAtomic(path, overwrite);
    }
    if (fs == null) {
      return super.createAtomic(path, overwrite);
    }
    try {
      return overwrite
          ? new Replaced(this, path, S3Create.replace(fs, path))
          : new Created(this, fs, path, new ByteArrayOutputStream());
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  public FileStatus[] list(Path path, PathFilter filter) {
    if (!isLog() || !path.equals(folder)) {
      return super.list(path, filter);
    }
    synchronized (this) {
      if (known == null) {
        TreeMap found = new TreeMap();
        for (FileStatus each : super.list(path, ALL)) {
          found.put(each.getPath().getName(), each);
        }
        known = found;
      }
      ArrayList wanted = new ArrayList();
      for (Object each : known.values()) {
        if (filter.accept(((FileStatus) each).getPath())) {
          wanted.add(each);
        }
      }
      return (FileStatus[]) wanted.toArray(new FileStatus[0]);
    }
  }

  public boolean exists(Path path) {
    synchronized (this) {
      if (known != null && path.getParent().equals(folder)) {
        return known.containsKey(path.getName());
      }
    }
    return super.exists(path);
  }

  public void delete(Path path) {
    super.delete(path);
    synchronized (this) {
      if (known != null) {
        known.remove(path.getName());
      }
    }
  }

  /**
   * Whether this is a query's log of offsets or commits, or a source's: one driver writes it, and
   * what another has put there is refused when it is put again.
   */
  private boolean isLog() {
    String name = folder.getName();
    return fs != null
        && (name.equals("offsets")
            || name.equals("commits")
            || folder.getParent().getName().equals("sources"));
  }

  private synchronized void put(Path path, long size) {
    // Delta's checksums of a table are written so, too, and found by a listing of its log.
    OwnLogs.Log own = OwnLogs.of(path);
    if (own != null) {
      own.put(path, size);
    }
    if (known != null && path.getParent().equals(folder)) {
      known.put(path.getName(), S3Create.status(path, size));
    }
  }

  /**
   * It is there once it is closed; whether there is another is asked then. Two drivers that both
   * have replayed a batch may write the same commit of it, and go on; the offsets of the next
   * batch, in which its time stands, are one's.
   */
  public static final class Created extends CancellableFSDataOutputStream {
    private final CheckpointFiles files;
    private final FileSystem fs;
    private final Path path;
    private final ByteArrayOutputStream data;
    private boolean ended;

    public Created(CheckpointFiles files, FileSystem fs, Path path, ByteArrayOutputStream data) {
      super(data);
      this.files = files;
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
      files.put(path, data.size());
    }

    public void cancel() {
      ended = true;
    }
  }

  /** It is there once it is closed. */
  public static final class Replaced extends CancellableFSDataOutputStream {
    private final CheckpointFiles files;
    private final Path path;
    private final FSDataOutputStream out;
    private boolean ended;

    public Replaced(CheckpointFiles files, Path path, FSDataOutputStream out) {
      super(out);
      this.files = files;
      this.path = path;
      this.out = out;
    }

    public void close() throws IOException {
      if (!ended) {
        ended = true;
        super.close();
        files.put(path, out.size());
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

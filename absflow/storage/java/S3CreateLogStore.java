package absflow;

import io.delta.storage.CloseableIterator;
import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log store for S3, where S3 itself refuses a second commit of a version.
 *
 * <p>Logs that only this driver writes ({@link OwnLogs}) it does not list, nor read what it wrote.
 */
public class S3CreateLogStore extends S3SingleDriverLogStore {
  public S3CreateLogStore(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf)
      throws IOException {
    OwnLogs.Log own = OwnLogs.of(path);
    if (overwrite.booleanValue()) {
      super.write(path, actions, overwrite, conf);
      if (own != null) {
        own.forget(); // a checkpoint of the log came before, which was not written here
      }
      return;
    }
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
      lines.write('\n');
    }
    // Each commit has an id of its own, so no two of them are the same bytes.
    if (!S3Create.put(path.getFileSystem(conf), path, lines.toByteArray())) {
      if (own != null) {
        own.forget(); // somebody else has written it
      }
      throw new FileAlreadyExistsException(path.toString());
    }
    if (own != null) {
      own.written(path, lines.toByteArray());
    }
  }

  public Iterator listFrom(Path path, Configuration conf) throws IOException {
    OwnLogs.Log own = OwnLogs.of(path);
    if (own == null) {
      return super.listFrom(path, conf);
    }
    synchronized (own) {
      Iterator known = own.from(path);
      return known != null ? known : own.listed(path, super.listFrom(path, conf));
    }
  }

  public CloseableIterator read(Path path, Configuration conf) throws IOException {
    OwnLogs.Log own = OwnLogs.of(path);
    if (own == null || !path.getName().matches("[0-9]+\\.json")) {
      return super.read(path, conf);
    }
    String text = own.text(path);
    if (text == null) {
      text = read(super.read(path, conf));
      own.keep(path, text);
    }
    return new Lines(text);
  }

  private static String read(CloseableIterator lines) throws IOException {
    StringBuilder text = new StringBuilder();
    try {
      while (lines.hasNext()) {
        text.append((String) lines.next()).append('\n');
      }
    } finally {
      lines.close();
    }
    return text.toString();
  }

  private static final class Lines implements CloseableIterator {
    private final Iterator lines;

    Lines(String text) {
      lines = java.util.Arrays.asList(text.split("\n")).iterator();
    }

    public boolean hasNext() {
      return lines.hasNext();
    }

    public Object next() {
      return lines.next();
    }

    public void close() {}
  }
}

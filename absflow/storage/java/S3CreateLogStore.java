package absflow;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Delta's log store for S3, where S3 itself refuses a second commit of a version. */
public class S3CreateLogStore extends S3SingleDriverLogStore {
  public S3CreateLogStore(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf)
      throws IOException {
    if (overwrite.booleanValue()) {
      super.write(path, actions, overwrite, conf);
      return;
    }
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
      lines.write('\n');
    }
    // Each commit has an id of its own, so no two of them are the same bytes.
    if (!S3Create.put(path.getFileSystem(conf), path, lines.toByteArray())) {
      throw new FileAlreadyExistsException(path.toString());
    }
  }
}

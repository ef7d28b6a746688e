package absflow;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArraySet;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * What this driver knows of the logs of Delta tables that nobody else writes.
 *
 * <p>Each source of a stage looks for new versions of its table all the time, each look is a
 * listing, and each version is read by several. All of it was written by this very JVM. What it
 * knows is a listing and what it has put since; it is as old as {@link #PATIENCE_NS} at most, so
 * that what has been deleted, and a commit of a driver that should not be there any more, is seen.
 * A version that is there already is refused by S3, whatever is known here.
 */
public final class OwnLogs {
  private static final long PATIENCE_NS = 300L * 1000 * 1000 * 1000;
  private static final long NOTED_NS = 1000L * 1000 * 1000;
  // Of each log; a channel's commits are a few kilobytes.
  private static final int TEXTS = 16;
  private static final int LONGEST = 1 << 18;

  private static final CopyOnWriteArraySet FOLDERS = new CopyOnWriteArraySet();
  private static final ConcurrentHashMap LOGS = new ConcurrentHashMap();

  private OwnLogs() {}

  /** Nobody else writes tables in this folder from now on. */
  public static void own(String folder) {
    FOLDERS.add(folder + "/");
  }

  /** Somebody else may. */
  public static void disown(String folder) {
    FOLDERS.remove(folder + "/");
    dropped(folder);
  }

  /** Whatever was in this folder is gone. */
  static void dropped(String folder) {
    Iterator logs = LOGS.keySet().iterator();
    while (logs.hasNext()) {
      if (((String) logs.next()).startsWith(folder + "/")) {
        logs.remove();
      }
    }
  }

  /** What is known of the log of a file; null if others may write it. */
  static Log of(Path path) {
    String folder = path.getParent().toString();
    for (Object each : FOLDERS) {
      if (folder.startsWith((String) each)) {
        Log known = (Log) LOGS.get(folder);
        if (known == null) {
          LOGS.putIfAbsent(folder, new Log());
          known = (Log) LOGS.get(folder);
        }
        return known;
      }
    }
    return null;
  }

  /** Of one table. */
  static final class Log {
    private final TreeMap files = new TreeMap();
    private final Map texts = new LinkedHashMap();
    // The listing began with this name; null if nothing is known.
    private String first;
    private long at;
    // The version that was put last, when, and by which thread.
    private String newest;
    private long newestAt;
    private long writer;

    /** The files from a name on; null if they are to be listed. */
    synchronized Iterator from(Path path) {
      boolean known = first != null && first.compareTo(path.getName()) <= 0;
      if (!known || System.nanoTime() - at > PATIENCE_NS) {
        return null;
      }
      ArrayList found = new ArrayList();
      for (Object each : files.tailMap(path.getName(), true).values()) {
        if (isOnlyTheWriters(((FileStatus) each).getPath().getName())) {
          break;
        }
        found.add(each);
      }
      return found.iterator();
    }

    /**
     * Whether a version was put just now, by another thread, which has not put its checksum yet.
     *
     * <p>Delta notes a version of its own with what it knows of the table, and puts that as the
     * checksum. A source that found the version before would note it without, and Delta would put
     * together the whole state of the table.
     */
    private boolean isOnlyTheWriters(String name) {
      if (!name.equals(newest) || writer == Thread.currentThread().getId()) {
        return false;
      }
      return !files.containsKey(name.replace(".json", ".crc"))
          && System.nanoTime() - newestAt < NOTED_NS;
    }

    /** Take what a listing from a name on has found. */
    synchronized Iterator listed(Path path, Iterator found) {
      first = path.getName();
      at = System.nanoTime();
      files.clear();
      while (found.hasNext()) {
        FileStatus each = (FileStatus) found.next();
        files.put(each.getPath().getName(), each);
      }
      return new ArrayList(files.values()).iterator();
    }

    /** A version was put. */
    synchronized void written(Path path, byte[] data) {
      put(path, data.length);
      newest = path.getName();
      newestAt = System.nanoTime();
      writer = Thread.currentThread().getId();
      keep(path, new String(data, StandardCharsets.UTF_8));
    }

    /** A file was put. */
    synchronized void put(Path path, long size) {
      files.put(path.getName(), S3Create.status(path, size));
    }

    /** What is in a version, which never changes. */
    synchronized void keep(Path path, String text) {
      if (text.length() <= LONGEST) {
        texts.put(path.getName(), text);
        if (texts.size() > TEXTS) {
          Iterator oldest = texts.keySet().iterator();
          oldest.next();
          oldest.remove();
        }
      }
    }

    /** The text of a version that was put or read lately; null if it is to be read. */
    synchronized String text(Path path) {
      return (String) texts.get(path.getName());
    }

    /** The next look is a listing. */
    synchronized void forget() {
      first = null;
    }
  }
}

package absflow;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricFilter;
import com.codahale.metrics.MetricRegistry;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.metrics.source.Source;

/**
 * A job as a source of Spark's metrics system: gauges with values that Python sets.
 *
 * <p>A registry within Spark's own hands each gauge on as it is added, and takes it out again.
 */
public final class JobMetrics implements Source {
  private final MetricRegistry registry = new MetricRegistry();
  private final ConcurrentHashMap values = new ConcurrentHashMap();
  private String name;

  public String sourceName() {
    return name;
  }

  public MetricRegistry metricRegistry() {
    return registry;
  }

  /** Let every sink have it. */
  public void begin(String name) {
    this.name = name;
    SparkEnv.get().metricsSystem().registerSource(this);
  }

  /**
   * Set values; a name that is new becomes a gauge.
   *
   * @param lines of a name, a tab and a number each.
   */
  public synchronized void set(String lines) {
    String[] given = lines.split("\n");
    for (int i = 0; i < given.length; i++) {
      int tab = given[i].indexOf('\t');
      if (tab < 0) {
        continue;
      }
      String metric = given[i].substring(0, tab);
      Object before = values.put(metric, Double.valueOf(given[i].substring(tab + 1)));
      if (before == null) {
        registry.register(metric, new Value(values, metric));
      }
    }
  }

  /** Take it and its gauges out. */
  public synchronized void end() {
    registry.removeMatching(MetricFilter.ALL);
    // Spark takes out all that begins with the name of a source, so also what is another job's
    // whose name is longer. By now nothing begins with this one.
    name = name + " (ended)";
    SparkEnv.get().metricsSystem().removeSource(this);
  }

  /** A gauge. */
  private static final class Value implements Gauge {
    private final ConcurrentHashMap values;
    private final String metric;

    Value(ConcurrentHashMap values, String metric) {
      this.values = values;
      this.metric = metric;
    }

    public Object getValue() {
      return values.get(metric);
    }
  }
}

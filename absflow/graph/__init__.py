"""A job's graph of sources, stages and sinks: declared, checked as a whole, described for facts."""

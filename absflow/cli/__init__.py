"""The command line: what has become of a job, without a JVM."""

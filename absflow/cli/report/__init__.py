"""The checkpoint page: what a job's tables say, as one HTML file; without a JVM and a network."""

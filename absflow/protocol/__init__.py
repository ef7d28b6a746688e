"""The protocol: what must happen, decided by pure functions (no Spark, no clock, no I/O)."""

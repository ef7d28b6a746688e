"""Destinations with transactions outside Spark, each a :class:`absflow.TransactionalSink`."""

"""Adapters to Spark: rows to pages and events, actions to rows; nothing is decided here."""

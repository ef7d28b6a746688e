"""Rows as Arrow tables: keys, pages, keyed state, and the stage that works on them (no Spark)."""

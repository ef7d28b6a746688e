"""Every setting of a job: a Spark conf key ``spark.absflow.<name>``.

So ``--conf``, ``--properties-file`` and the session builder all work. Durations carry their unit
(``500ms``, ``30s``, ``5min``, ``1h``), sizes too (``64MiB``).
"""

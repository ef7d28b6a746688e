"""Facts: the rows of ``attempts``, ``barriers``, ``overtakes``, ``checkpoints`` and ``requests``.

No other package knows their columns. Rows become records of :mod:`absflow.protocol` here, and a
driver's claim and fence decide who may write them.
"""

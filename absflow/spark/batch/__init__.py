"""One micro-batch on the driver: the order of its writes, its replay, its snapshots and reports."""

"""The durable side of a job: where its files lie, its Delta tables, and their logs."""

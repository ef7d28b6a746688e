"""From a job to an attempt that is ready to run: the decision, the restore, the savepoint writer.

The only wing that changes a storage root before the job runs.
"""

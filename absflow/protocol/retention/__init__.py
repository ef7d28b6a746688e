"""What may be deleted or compacted, and the answer to a request for a deletion."""

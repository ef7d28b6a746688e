"""A job that runs: the thread that watches over it, what the coordinator asks for, retention."""

"""The functions that run in Python workers on executors; no other wing has any."""

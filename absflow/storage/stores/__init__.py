"""The kinds of storage: one interface, and an implementation for each kind."""

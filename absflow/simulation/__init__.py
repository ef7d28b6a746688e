"""A seeded world around the protocol: queries, tables, faults and a clock, all simulated.

``world.run(seed)`` plays one job to its end; the same seed plays the same story. The checkers look
at what is left in the tables and compute on their own what should be there.
"""

"""What the programs of ``engines.py`` have in common; imports nothing that a peer may lack."""

from __future__ import annotations

# A run has two whole checkpoint periods. Before the first, so many seconds, and each key so often.
RUN_S, WARM_S, WARM_TIMES = 20, 30, 5

"""What compaction writes, and what a restore has to read, as the state grows a thousand times.

``python benchmarks/compaction.py [--most KEYS] [--write]``. A simulation of retention's own plans
(``absflow/simulation/compaction.py``): 100 rows change between two checkpoints, for as long as it
takes to change three times as many as there are, at ``lineage.max-sets`` 20. Prints the rows that
were rewritten for each one that changed, and the most that had to be read for each live key; beside
it, for updates, what merging all sets every 20 checkpoints costs. There is no clock in it: every
run on every machine gives the same. With ``--write`` the figures go to ``docs/figures``.
"""

from __future__ import annotations

from _quick import usual
from _results import OURS, Results, arguments

from absflow.protocol.tiers import TierPolicy
from absflow.simulation.compaction import WORKLOADS, simulate

TIERS = TierPolicy(20, free_dead=0)
SHARE = 100
ALL = "all sets every 20 checkpoints"


def main(most: int, write: bool) -> None:
    """Every workload at every size."""
    written = Results("compaction_written", "rows rewritten for each one changed")
    read = Results("compaction_read", "rows read for each live key, at most")
    sets = Results("compaction_sets", "sets to read, at most")
    sizes = [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= most]
    for size in sizes:
        case = f"{size:,} keys, 100 change with a checkpoint"
        for name, workload in WORKLOADS.items():
            checkpoints = max(200, 3 * size // SHARE)
            found = simulate(workload, TIERS, size=size, share=SHARE, checkpoints=checkpoints)
            written.add(case, f"{OURS}, {name}", [found.amplification])
            read.add(case, f"{OURS}, {name}", [found.most_read])
            sets.add(case, f"{OURS}, {name}", [found.most_sets])
        # Every twentieth checkpoint is like every other, so a few are enough.
        peer = simulate(
            WORKLOADS["uniform updates"],
            TIERS,
            size=size,
            share=SHARE,
            checkpoints=191,  # ten compactions
            counted=False,
        )
        written.add(case, f"{ALL}, uniform updates", [peer.amplification])
        read.add(case, f"{ALL}, uniform updates", [peer.most_read])
        sets.add(case, f"{ALL}, uniform updates", [peer.most_sets])
        for results in (written, read, sets):
            results.show(case)
            if write:
                results.write()


if __name__ == "__main__":
    parser = arguments("What compaction costs.", "of no meaning here: all runs are equal")
    parser.add_argument("--most", type=int, default=usual(1_000_000, 100_000), metavar="KEYS")
    given = parser.parse_args()
    main(given.most, given.write)

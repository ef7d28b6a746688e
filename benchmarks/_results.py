"""What a benchmark measured: medians beside each other as a table, as JSON and as a plot.

``figures.json`` beside the plots in ``docs/figures`` holds, for each benchmark that ran with
``--write``, every single run; the docs take their figures from there (``docs/generated.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from _quick import QUICK, usual
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
OURS = "absflow"


def arguments(
    description: str, runs: str, usually: int = 5, quick: int = 1
) -> argparse.ArgumentParser:
    """What every benchmark takes that can write its figures.

    Args:
        description: of the program.
        runs: what of.
        usually: how many.
        quick: how many with ``QUICK=1``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=usual(usually, quick), help=runs)
    parser.add_argument("--write", action="store_true", help="the figures into docs/figures")
    return parser


@dataclass(frozen=True)
class Peer:
    """What a peer promises while it is measured.

    Attributes:
        guarantee: of each row, for its state: "exactly once", "at least once" or "none".
        checkpoints: how often it takes one.
    """

    guarantee: str
    checkpoints: str


@dataclass
class Results:
    """Runs of several peers in several cases, all in one unit.

    Attributes:
        name: the benchmark's.
        unit: of a run, such as ``rows/s``.
        bases: the peers whose medians others are divided by; of those that differ behind a comma,
            as "base, one" and "base, other", the highest.
        runs: case -> peer -> what each run gave.
        peers: what each promises; a table has columns for that if anything is said.
        intervals: case -> peer -> between what its true value lies with 95 %.
        keeps: cases whose old figures stay, with their date, if they are not measured now.
    """

    name: str
    unit: str
    bases: tuple[str, ...] = ()
    runs: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    keeps: Collection[str] = ()

    def add(self, case: str, peer: str, values: list[float]) -> None:
        """Note the runs of a peer; none if it could not run."""
        if values:
            self.runs.setdefault(case, {})[peer] = values

    def median(self, case: str, base: str) -> float | None:
        """Of a base; None if it did not run."""
        peers = self.runs[case]
        names = [base] if base in peers else [p for p in peers if p.startswith(f"{base}, ")]
        return max((statistics.median(peers[name]) for name in names), default=None)

    def show(self, case: str) -> None:
        """Print a case as a table; nothing if no peer ran."""
        if case not in self.runs:
            return
        table = Table(title=case, title_justify="left")
        table.add_column()
        intervals = self.intervals.get(case, {})
        more = ["95 % interval"] if intervals else []
        for name in (self.unit, "lowest", "highest", *more, *(f"x {base}" for base in self.bases)):
            table.add_column(name, justify="right")
        for peer, values in self.runs[case].items():
            middle = statistics.median(values)
            cells = [
                f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"
                for number in (middle, min(values), max(values))
            ]
            if intervals:
                cells.append("{:.3g} to {:.3g}".format(*intervals[peer]))
            bases = (self.median(case, base) for base in self.bases)
            cells += [f"{middle / base:.2f}" if base else "-" for base in bases]
            table.add_row(peer, *cells)
        Console(width=100).print(table)

    def write(self) -> None:
        """Into ``figures.json``, in the place of what this benchmark left there, and as a plot."""
        if QUICK:
            raise SystemExit("figures of a quick run are not for the docs; run it without QUICK")
        FOLDER.mkdir(exist_ok=True)
        file = FOLDER / "figures.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        old = known.get(self.name, {"runs": {}})
        measured = {
            "at": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "on": f"{os.cpu_count()} cores, Python {platform.python_version()}",
            "versions": {name: version(name) for name in ("pyspark", "delta-spark", "pyarrow")},
        }
        stay = [c for c in self.keeps if c in old["runs"] and c not in self.runs]
        older = old.get("older", {})
        runs = {case: old["runs"][case] for case in stay} | self.runs
        order = [*(case for case in self.keeps if case in runs), *runs]
        runs = {case: runs[case] for case in order}
        known[self.name] = {
            "unit": self.unit,
            "bases": self.bases,
            **measured,
            "older": {c: older.get(c, {name: old[name] for name in measured}) for c in stay},
            "runs": runs,
            "peers": {name: asdict(peer) for name, peer in self.peers.items()},
            "intervals": self.intervals,
        }
        file.write_text(json.dumps(known, indent=1) + "\n")
        try:
            self._plot(FOLDER / f"{self.name}.svg", runs)
        except ModuleNotFoundError as error:  # the figures of hours are more than a picture
            print(f"{self.name}.svg is not drawn: {error}; make bench installs what it needs")

    def _plot(self, path: Path, runs: dict[str, dict[str, list[float]]]) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        # Equal figures give equal files.
        mpl.rcParams["svg.hashsalt"] = self.name
        height = sum(0.6 + 0.28 * len(peers) for peers in runs.values())
        figure = Figure(figsize=(8, height), layout="constrained")
        ratios = [len(peers) + 1 for peers in runs.values()]
        axes = figure.subplots(
            len(runs), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
        )
        for axis, (case, peers) in zip(axes[:, 0], runs.items(), strict=True):
            names = list(peers)[::-1]
            middles = [statistics.median(peers[name]) for name in names]
            colors = ["tab:blue" if name.startswith(OURS) else "tab:gray" for name in names]
            axis.barh(names, middles, color=colors)
            axis.set_title(case, loc="left", fontsize=9)
            axis.set_xscale("log")
            axis.tick_params(labelsize=8)
            for place, middle in enumerate(middles):
                axis.text(middle, place, f" {middle:,.4g}", va="center", fontsize=7)
        axes[-1, 0].set_xlabel(f"{self.unit} (median; logarithmic)", fontsize=8)
        figure.savefig(path, metadata={"Date": None})

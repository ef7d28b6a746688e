"""The checkpoint page of a long history, in a real browser.

``python benchmarks/page.py [--runs N] [--write]``. A storage root with 100 and with 1,000
checkpoints of twenty stages is written, and looked at in Chromium without a display:

- ``absflow report``: a process from its start to its end, which writes one file of them all;
- that file opened: from the call to the frame behind the ``load`` event, in a context that has
  nothing cached;
- a checkpoint chosen, and the list filtered: from the event to the second frame behind it;
- the whole page scrolled through in 200 steps, one for each frame: the longest of these;
- the live page opened, which shows the newest.

The sizes take turns. Prints medians; with ``--write`` the figures go to ``docs/figures``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from _quick import usual
from _results import Results, arguments

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]

from chromium import chromium  # noqa: E402
from storage_roots import Checkpoint, Stage, write_root  # noqa: E402
from test_serve_command import served  # noqa: E402

STAGES = 20
COUNTS = (100, 1000)
_PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_CHOOSE = f"""async id => {{
    const began = performance.now();
    location.hash = `c${{id}}`;
    await {_PAINTED};
    return performance.now() - began;
}}"""
_FILTER = f"""async text => {{
    const field = document.querySelector("#filter");
    const began = performance.now();
    field.value = text;
    field.dispatchEvent(new Event("input", {{bubbles: true}}));
    await {_PAINTED};
    return performance.now() - began;
}}"""
_SCROLL = """async steps => {
    const height = document.documentElement.scrollHeight - innerHeight;
    let longest = 0, last = performance.now();
    for (let step = 1; step <= steps; step++) {
        scrollTo(0, height * step / steps);
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
    }
    return longest;
}"""


def root(folder: Path, count: int) -> Any:
    """A storage root with so many checkpoints."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    stages = [Stage(f"stage-{n}", keys, columns, {1: [{"k": 1, "n": 1}]}) for n in range(STAGES)]
    checkpoints = [Checkpoint(n, max(0, n - 1)) for n in range(1, count + 1)]
    return write_root(folder / f"job-{count}", stages, checkpoints)


@contextmanager
def fresh(browser: Any) -> Iterator[Any]:
    """A page that knows of nothing."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield context.new_page()


def opened(page: Any, url: str) -> float:
    """Milliseconds until it is painted."""
    began = time.monotonic()
    page.goto(url)
    page.evaluate(_PAINTED)
    return (time.monotonic() - began) * 1000


def measure(browser: Any, of: Any, count: int) -> dict[str, float]:
    """One run."""
    absflow = str(Path(sys.executable).with_name("absflow"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        command = [absflow, "report", "--storage", str(of.path), "--limit", str(count)]
        began = time.monotonic()
        subprocess.run([*command, "-o", str(file)], check=True, stdout=subprocess.DEVNULL)
        found = {"absflow report": (time.monotonic() - began) * 1000}
        print(f"{count:,} checkpoints: {file.stat().st_size:,} bytes")
        with fresh(browser) as page:
            found["the file opened"] = opened(page, file.as_uri())
            found["a checkpoint chosen"] = page.evaluate(_CHOOSE, count - 50)
            found["the list filtered"] = page.evaluate(_FILTER, "7")
            page.evaluate(_FILTER, "")
            found["scrolled through: the longest frame"] = page.evaluate(_SCROLL, usual(200, 50))
        with served(of) as server, fresh(browser) as page:
            found["the live page opened"] = opened(page, server.url)
    return found


def main() -> None:
    """All runs, and their medians as tables."""
    parser = arguments("The checkpoint page of a long history.", "of each size", 5, 2)
    asked = parser.parse_args()
    runs: dict[str, dict[int, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        roots = {count: root(Path(folder), count) for count in COUNTS}
        for _ in range(asked.runs):
            for count, of in roots.items():
                for what, took in measure(browser, of, count).items():
                    runs.setdefault(what, {}).setdefault(count, []).append(took)
    base = f"{COUNTS[0]:,} checkpoints"
    results = Results("page", "ms", (base,))
    for what, by_count in runs.items():
        for count, values in by_count.items():
            results.add(what, f"{count:,} checkpoints", values)
        results.show(what)
    if asked.write:
        results.write()


if __name__ == "__main__":
    main()

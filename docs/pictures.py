"""Pictures of the checkpoint page, taken of a real job: ``python docs/pictures.py STORAGE``.

STORAGE is the storage root of a job that has run, as ``data/flights/job`` after ``make demo``.
For ``page.png`` its driver was killed, and it was restored from a checkpoint.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
WIDTH, HEIGHT = 1200, 1150


def main(storage: str) -> None:
    """The first screen of the page, and one checkpoint of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from chromium import chromium

    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder, "page.html")
        absflow = str(Path(sys.executable).with_name("absflow"))
        subprocess.run([absflow, "report", "--storage", storage, "-o", str(file)], check=True)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(file.as_uri())
        page.screenshot(path=FIGURES / "page.png")
        page.locator("section.detail.chosen").screenshot(path=FIGURES / "checkpoint.png")


if __name__ == "__main__":
    main(sys.argv[1])

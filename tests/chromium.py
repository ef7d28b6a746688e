"""Chromium of the system's packages, without a display."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, for the time of a block."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "no chromium is installed: apt-get install chromium"
    with sync_playwright() as driver:
        # Root has no sandbox, and a container little shared memory.
        opened = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()

"""The entry point: it only makes sure that what the commands need is installed."""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA = ("click", "rich", "deltalake")


def main() -> None:
    """Run the command line; exits 0, 1 (the thing asked for failed) or 2 (it was asked wrongly)."""
    try:
        from absflow.cli.commands import absflow
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(
            f"absflow: the command line needs {missing!r}, which is not installed; "
            "pip install 'absflow[cli]'\n"
        )
        sys.exit(1)
    absflow(prog_name="absflow")


if __name__ == "__main__":
    main()

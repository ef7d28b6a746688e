"""The jobs are importable, as spark-submit makes the folder of the script that it runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

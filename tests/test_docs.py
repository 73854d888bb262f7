"""The generated pages of docs/ say what the commands and fixers say now."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_generated_pages_are_current():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run python docs/generate.py"

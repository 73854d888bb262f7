"""One process as a rank with the hook injected, without any launcher."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from eroica.collect.hook import layout
from eroica.collect.rings import RingReader, find_rings

INJECT = Path(__file__).parents[1] / "eroica" / "collect" / "inject"


started = []


def run_rank(folder, code, *paths, python=sys.executable, **environment):
    """Run code as rank 3 of 4 with the hook injected; stdin stays open for a running rank."""
    given = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RANK", "EROICA"))},
        "PYTHONPATH": os.pathsep.join([str(INJECT), *map(str, paths)]),
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "EROICA_RUN": str(folder),
        **environment,
    }
    process = subprocess.Popen(
        [python, "-c", textwrap.dedent(code)],
        env={k: v for k, v in given.items() if v is not None},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def end_started():
    """End what a failed test left running."""
    while started:
        process = started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def finish(process):
    out, err = process.communicate("\n", timeout=60)
    return process.returncode, out, err


def letters(folder, rank=3):
    reader = RingReader(find_rings(folder)[rank])
    text = "".join(layout.LETTERS[event.kind] for event in reader.read_new())
    reader.close()
    return text

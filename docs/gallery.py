"""Make docs/gallery: reports of four incidents, with the commands that made them.

    python docs/gallery.py [NAME ...]

demo              a real job on this machine, 4 ranks, stuck (needs torch)
dlrm              the traces of 8 V100 ranks in tests/data
flight_recorder   the dumps of 16 ranks in tests/data, two of them holding their GIL
cluster           a simulated job of 3,400 ranks: a NIC down and unaligned garbage collection
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
DATA = ROOT / "tests" / "data"


def eroica(*words: str, home: Path, cwd: Path) -> str:
    """Run a command of eroica; its incidents go below ``home``."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eroica", *words],
        cwd=cwd,
        env=os.environ | {"EROICA_HOME": str(home), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"eroica {' '.join(words)} ended {done.returncode}:\n{done.stderr}")
    return done.stdout


def demo(folder: Path) -> list[str]:
    eroica("demo", "--yes", home=folder, cwd=folder)
    return ["eroica demo --yes"]


def dlrm(folder: Path) -> list[str]:
    shutil.copytree(DATA / "dlrm_8ranks_v100", folder / "dlrm_8ranks_v100")
    eroica("diagnose", "dlrm_8ranks_v100", home=folder, cwd=folder)
    return ["eroica diagnose tests/data/dlrm_8ranks_v100"]


def flight_recorder(folder: Path) -> list[str]:
    name = "nccl_16ranks_lock_gil_1st"
    shutil.copytree(DATA / "flight_recorder" / name, folder / name)
    eroica("diagnose", name, home=folder, cwd=folder)
    return [f"eroica diagnose tests/data/flight_recorder/{name}"]


def cluster(folder: Path) -> list[str]:
    import numpy as np

    from eroica.localize.table_file import write_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import Simulation

    size = 3400
    jobs = Cluster(size)
    faults = [
        Fault("slow_nic", (1712,), 0.15),
        Fault("unaligned_gc", tuple(range(size)), 0.03),
    ]
    job = Simulation(jobs, faults, seed=7)
    write_table(
        folder / "cluster.parquet",
        [planned.function for planned in job.planned],
        job.blocks(),
        ranks_R=np.arange(size),
        roles_R=jobs.stage_R.astype(np.int32),
        hosts_R=jobs.hosts(),
    )
    eroica("diagnose", "cluster.parquet", home=folder, cwd=folder)
    return ["eroica diagnose cluster.parquet   # made by eroica.simulate, see docs/gallery.py"]


MAKERS: dict[str, Callable[[Path], list[str]]] = {
    "demo": demo,
    "dlrm": dlrm,
    "flight_recorder": flight_recorder,
    "cluster": cluster,
}


def make(name: str) -> str:
    """Make one entry; returns its lines for the index."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        commands = MAKERS[name](folder)
        for suffix in ("html", "md"):
            out = GALLERY / f"{name}.{suffix}"
            eroica("report", "--format", suffix, "-o", str(out), home=folder, cwd=folder)
            text = out.read_text().replace(str(folder) + "/", "")
            text = text.replace(str(Path(sys.executable).parent) + "/", "")
            out.write_text(re.sub(r"/\S*?/eroica-demo-\w+/", "", text))
    commands.append(f"eroica report --format html -o {name}.html")
    lines = "\n".join(commands)
    first = (GALLERY / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
    links = f"[page]({name}.html), [Markdown]({name}.md)"
    return f"## {name}\n\n{first}\n\n{links}\n\n```sh\n{lines}\n```\n"


def main() -> int:
    GALLERY.mkdir(exist_ok=True)
    names = sys.argv[1:] or list(MAKERS)
    parts = [make(name) for name in names]
    if not sys.argv[1:]:
        head = "# Gallery\n\nReports as eroica writes them, made by `python docs/gallery.py`.\n\n"
        (GALLERY / "README.md").write_text(head + "\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())

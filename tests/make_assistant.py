"""A project with a stuck job's incident, and what a scripted assistant says about it."""

import os
import subprocess
import sys
from pathlib import Path

from eroica import incident as incidents
from eroica.records import Cause, Finding, Incident, Job, Place

SCRIPT = """\
import torch.distributed as dist

TOKEN = "sk-abcdefghijklmnopqrstuvwxyz0123456789"


def save(model, rank):
    if rank == 0:
        print("saving")
        dist.barrier()


def main():
    save(None, dist.get_rank())
"""

GOOD = """\
train.py
<<<<<<< SEARCH
        print("saving")
        dist.barrier()
=======
        print("saving")
    dist.barrier()
>>>>>>> REPLACE
"""

BAD = """\
train.py
<<<<<<< SEARCH
    save(None, dist.get_rank())
=======
    save(None, dist.get_rank())
    if dist.get_rank() == 0:
        dist.barrier()
>>>>>>> REPLACE
"""


def make_project(root: Path, num_findings: int = 45) -> incidents.IncidentFolder:
    """Write the project; the incident goes to the store of the working folder."""
    root.mkdir(parents=True)
    (root / "train.py").write_text(SCRIPT)
    folder = incidents.create("barrier")
    cause = Cause(
        id="C1",
        category="rank_conditional_collective",
        ranks=(0,),
        functions=(Place(name="save", file="train.py", line=9),),
        share=None,
        confidence=0.97,
        summary="rank 0 waits in a barrier",
        action="patch",
        findings=("F1",),
    )
    folder.write_incident(
        Incident(
            id=folder.id,
            symptom="stuck",
            onset=None,
            job=Job(world_size=2, ranks=(0, 1), source_root=str(root)),
            causes=(cause,),
            findings=tuple(
                Finding(id=f"F{n}", kind="stack", text=f"finding {n}")
                for n in range(1, num_findings + 1)
            ),
            warnings=(),
            headline="rank 0 waits in a barrier",
        )
    )
    return folder


def command(*more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "eroica", "mcp", *more]


def start(root: Path, *more: str, **options: object) -> subprocess.Popen[bytes]:
    """Start the server as a process of its own, in the project."""
    return subprocess.Popen(command(*more), cwd=root, env=dict(os.environ), **options)

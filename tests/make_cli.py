"""The command line called in this process, in a folder of its own, with a small stuck job."""

import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from eroica import cli
from eroica import incident as incidents
from eroica.records import Cause, Finding, Incident, Job, Patch, Place

DATA = Path(__file__).parent / "data"
FIXED = "find_unused_parameters=True"


@dataclass
class Done:
    code: int
    out: str
    err: str


class Shell:
    """A folder and the commands typed in it."""

    def __init__(self, folder: Path, monkeypatch, capfd) -> None:
        self.folder, self._patch, self._capfd = folder, monkeypatch, capfd
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "100")
        for name in ("EROICA_MODEL", "EROICA_HOME", "CI"):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, *words: str) -> Done:
        level = logging.getLogger("eroica").level
        self._patch.setattr(sys, "argv", ["eroica", *words])
        self._capfd.readouterr()
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            logging.getLogger("eroica").setLevel(level)
        return Done(code, *self._capfd.readouterr())

    def terminal(self, monkeypatch) -> None:
        """Have a person sit there."""
        monkeypatch.setattr("eroica.commands.output.is_interactive", lambda: True)


def job(folder: Path) -> Path:
    """A stuck job's evidence and source (skipped layers under DDP), without what is known of it."""
    for name in ("evidence.json", "train.py"):
        shutil.copy(DATA / "stuck_layerdrop" / name, folder / name)
    return folder


def incident(store: Path, **more) -> incidents.IncidentFolder:
    """A hand-made incident: a barrier only rank 0 enters."""
    folder = incidents.create("barrier", store)
    cause = Cause(
        id="C1", category="rank_conditional_collective", ranks=(0,),
        functions=(Place(name="save", file="train.py", line=8),), share=None, confidence=0.97,
        summary="rank 0 waits in a barrier", action="patch", findings=("F1",),
    )  # fmt: skip
    given = {
        "id": folder.id,
        "symptom": "stuck",
        "onset": None,
        "job": Job(world_size=4, ranks=(0, 1, 2, 3)),
        "causes": (cause,),
        "findings": (Finding(id="F1", kind="collective_divergence", text="barrier on [0]"),),
        "warnings": (),
        "headline": "rank 0 waits in a barrier that ranks 1-3 never enter",
        **more,
    }
    folder.write_incident(Incident(**given))
    return folder


def patch(name: str, *edits, cause: str = "C1", label: str = "review", **more) -> Patch:
    from eroica.fix.diff import unified

    given = {"source": "fixer COL001", "title": "Do it", "diff": unified(edits), **more}
    return Patch(id=name, cause=cause, label=label, edits=tuple(edits), **given)

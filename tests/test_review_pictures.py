"""Two pictures of the review, drawn again and compared byte for byte; textual is pinned for them.

``pytest tests/test_review_pictures.py --update-golden`` draws them anew: look at them then.
"""

from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from make_review import patch, session

from eroica.fix.diff import file_edit
from eroica.records import Claim, Diagnosis, Finding, Function, RankRow, Rehearsal
from eroica.review.app import ReviewApp

CONSTRAINTS = (Path(__file__).parents[1] / "constraints-dev.txt").read_text()
PINNED = {name: f"{name}=={version(name)}" in CONSTRAINTS for name in ("textual", "rich")}
pytestmark = pytest.mark.skipif(
    not all(PINNED.values()),
    reason="another textual or rich than in constraints-dev.txt draws another picture",
)

BEFORE = '''\
import torch
import torch.distributed as dist


def save_checkpoint(model, path):
    """Write the model, then wait for the others."""
    torch.save(model.state_dict(), path)
    dist.barrier()


def train(model, rank):
    for step in range(400):
        model.step()
        if rank == 0 and step % 20 == 0:
            save_checkpoint(model, f"{step:06d}.pt")
'''


def review():
    after = BEFORE.replace("    dist.barrier()\n", "").replace(
        "        if rank == 0 and step % 20 == 0:\n            save_checkpoint",
        "        if step % 20 == 0:\n            if rank == 0:\n                save_checkpoint",
    )
    edit = file_edit("train.py", BEFORE, after + "            dist.barrier()\n")
    made = msgspec.structs.replace(
        patch("P1", ""),
        edits=(edit,),
        title="Move a collective out of a condition on the rank",
        source="fixer COL001",
        rehearsal=Rehearsal(command=("x",), verdict="cured", summary="finished, 400 steps"),
    )
    shown = session(made)
    function = Function(id="f", kind="python", name="save_checkpoint")
    findings = tuple(
        Finding(id=f"F{n + 1}", kind="pattern", rank=n, beta=beta, function=function, text=text)
        for n, (beta, text) in enumerate([(0.97, "barrier on rank 0"), (0.02, "all_reduce on 1")])
    )
    cause = msgspec.structs.replace(
        shown.incident.causes[0],
        category="rank_conditional_collective",
        ranks=(0,),
        findings=("F1", "F2"),
    )
    rows = (
        RankRow(ranks=(0,), last_collective="barrier #63", place="train.py:8  save_checkpoint"),
        RankRow(ranks=(1,), last_collective="all_reduce #63", place="train.py:13  train"),
    )
    shown.incident = msgspec.structs.replace(
        shown.incident, causes=(cause,), findings=findings, ranks_table=rows
    )
    claim = Claim(text="Only rank 0 reaches the barrier.", citations=("F1",))
    said = Diagnosis(cause="C1", verdict="established", summary="Rank 0 waits.", claims=(claim,))
    return ReviewApp(shown, diagnoses=[said], is_dark=True)


@pytest.mark.parametrize(
    ("name", "size", "keys"), [("wide_dark", (120, 34), ["y"]), ("small_light", (80, 24), ["t"])]
)
async def test_the_review_looks_as_recorded(golden, monkeypatch, name, size, keys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    app = review()
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        golden(f"golden_review/{name}.svg", app.export_screenshot(title="eroica review"))

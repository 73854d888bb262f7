"""From an incident to patches: where fixers look, what they leave alone, what the gates say."""

from dataclasses import replace
from importlib import import_module

import msgspec
import pytest

from eroica.errors import InputError
from eroica.fix.apply import apply
from eroica.fix.context import Context, FixerResult
from eroica.fix.diff import file_edit
from eroica.fix.docs import page
from eroica.fix.gates import check, undefined_names
from eroica.fix.ladder import ladder
from eroica.fix.project import Tree, locate
from eroica.fix.propose import (
    MIN_FURTHER_SCORE,
    MIN_SCORE,
    causes_to_patch,
    patch_for,
    propose,
)
from eroica.fix.registry import load_fixers
from eroica.fix.runbook import runbook
from eroica.fix.safety import one_sided
from eroica.records import CATEGORIES, Cause, Incident, Job, Place

proposing = import_module("eroica.fix.propose")  # the room exports a function of that name

TRAIN = """\
import torch.distributed as dist
from job import helpers


def train(model, rank):
    for step in range(100):
        model(step).backward()
        if rank == 0:
            helpers.save(model)
"""
HELPERS = """\
import torch.distributed as dist


def save(model):
    model.dump()
    dist.barrier()
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__init__.py").write_text("")
    (tmp_path / "job" / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def incident(*, symptom="stuck", **changes):
    cause = Cause(
        id="C1", category="rank_conditional_collective", ranks=(0,),
        functions=(
            Place(name="save", file="job/helpers.py", line=6),
            Place(name="train", file="train.py", line=9),
        ),
        share=None, confidence=0.9, summary="", action="patch",
    )  # fmt: skip
    cause = msgspec.structs.replace(cause, **changes)
    job = Job(world_size=2, ranks=(0, 1), hosts={"n1": (0,), "n2": (1,)})
    return Incident(
        id="i", symptom=symptom, onset=None, job=job, causes=(cause,), findings=(), warnings=()
    )


def test_a_patch_may_span_files_and_says_why_here(root):
    (patch,) = propose(incident(), source_root=root)
    assert patch.source == "fixer COL001"
    assert [edit.path for edit in patch.edits] == ["job/helpers.py", "train.py"]
    assert "train.py:8" in patch.why
    assert all(gate.passed for gate in patch.gates)
    after = {edit.path: edit.after for edit in patch.edits}
    assert "barrier" not in after["job/helpers.py"]
    assert after["train.py"].endswith("            helpers.save(model)\n        dist.barrier()\n")


def test_paths_of_another_machine_are_matched_by_their_end(root):
    places = (Place(name="save", file="/app/src/job/helpers.py", line=6),)
    assert len(propose(incident(functions=places), source_root=root)) == 1


def test_a_place_in_site_packages_is_nobodys_code(root):
    places = (Place(name="save", file="/x/lib/python3.11/site-packages/job/helpers.py", line=6),)
    assert propose(incident(functions=places), source_root=root) == []


SLOW = """\
import torch

torch.autograd.set_detect_anomaly(True)


def train(model, data):
    total = 0.0
    for x in data:
        loss = model(x)
        loss.backward()
        total += loss.item()
    return total
"""


def slow_incident(*causes):
    job = Job(world_size=2, ranks=(0, 1))
    return Incident(
        id="i", symptom="slow", onset=None, job=job, causes=causes, findings=(), warnings=()
    )


def slow_cause(category, line, **more):
    facts = {"share": 0.4, "confidence": 0.9, "action": "patch", **more}
    place = Place(name="train" if line > 4 else "<module>", file="train.py", line=line)
    return Cause(
        id=f"C{line}", category=category, ranks="all", functions=(place,), summary="", **facts
    )


def test_two_causes_of_a_slow_job_get_two_patches_that_fit_together(root):
    (root / "train.py").write_text(SLOW)
    causes = (slow_cause("debug_setting_left_on", 3), slow_cause("host_sync", 11))
    patches = propose(slow_incident(*causes), source_root=root)
    assert [patch.source for patch in patches] == ["fixer DBG001", "fixer SYN001"]
    apply(patches, root)
    after = (root / "train.py").read_text()
    assert "anomaly" not in after
    assert "total += loss.detach()" in after


@pytest.mark.parametrize("more", [{"share": 0.02}, {"confidence": 0.3}, {"action": "configure"}])
def test_a_further_cause_that_is_weak_gets_no_patch(root, more):
    (root / "train.py").write_text(SLOW)
    causes = (slow_cause("debug_setting_left_on", 3), slow_cause("host_sync", 11, **more))
    assert len(propose(slow_incident(*causes), source_root=root)) == 1


def causes(*given, symptom="slow"):
    """An incident of causes given as (category, confidence, share, action)."""
    made = [
        Cause(
            id=f"C{n}", category=category, ranks="all", functions=(), share=share,
            confidence=confidence, summary="", action=action,
        )
        for n, (category, confidence, share, action) in enumerate(given, 1)
    ]  # fmt: skip
    return msgspec.structs.replace(incident(symptom=symptom), causes=tuple(made))


@pytest.mark.parametrize(
    ("confidence", "share", "is_patched"),
    [(0.6, 0.1, True), (0.59, 0.1, False), (0.6, 0.099, False), (0.9, None, True)],
)
def test_a_further_cause_must_be_sure_and_worth_a_tenth_of_the_step(confidence, share, is_patched):
    given = causes(("gc_pause", 0.3, 0.01, "patch"), ("host_sync", confidence, share, "patch"))
    wanted = ["C1", "C2"] if is_patched else ["C1"]
    assert [cause.id for cause in causes_to_patch(given)] == wanted


def test_where_the_answer_lies_outside_the_code_the_guesses_beside_it_get_no_patch():
    for action in ("drain", "configure"):
        given = causes(("gc_pause", 0.9, 0.4, action), ("host_sync", 0.9, 0.4, "patch"))
        assert causes_to_patch(given) == []
    behind = causes(("gc_pause", 0.9, 0.4, "patch"), ("gpu_throttled", 0.9, 0.4, "drain"))
    assert [cause.id for cause in causes_to_patch(behind)] == ["C1"]


FITTING = FixerResult({"train.py": TRAIN + "\n# patched\n"}, "why", "behaviour")


@pytest.mark.parametrize(
    ("score", "least", "is_offered"),
    [(0.3, MIN_SCORE, True), (0.29, MIN_SCORE, False), (0.6, MIN_FURTHER_SCORE, True),
     (0.59, MIN_FURTHER_SCORE, False)],
)  # fmt: skip
def test_a_fixer_must_fit_well_and_for_a_further_cause_better(
    root, monkeypatch, score, least, is_offered
):
    result = replace(FITTING, score=score)
    monkeypatch.setattr(proposing, "candidates", lambda _: [(load_fixers()["COL001"], result)])
    tree = Tree(root)
    tree.load("train.py")
    context = Context(incident().causes[0], tree.sources, ())
    assert (patch_for(context, 1, least) is not None) is is_offered


@pytest.mark.parametrize(("symptom", "count"), [("slow", 2), ("stuck", 1), ("failed", 1)])
def test_only_a_slow_job_gets_patches_for_more_than_one_cause(root, symptom, count):
    (root / "train.py").write_text(TWO)
    places = [(Place(name="train", file="train.py", line=line),) for line in (6, 8)]
    first, second = (
        Cause(
            id=f"C{n}", category=category, ranks="all", functions=where, share=0.5,
            confidence=0.9, summary="", action="patch",
        )
        for n, (category, where) in enumerate(
            zip(("gc_pause", "excessive_barriers"), places, strict=True), 1
        )
    )  # fmt: skip
    both = msgspec.structs.replace(incident(symptom=symptom), causes=(first, second))
    assert len(propose(both, source_root=root)) == count


TWO = """\
import torch.distributed as dist


def train(model, data):
    # every row once
    for step, x in enumerate(data):
        model(x).backward()
        dist.barrier()
        step_done(step)
"""


@pytest.mark.parametrize("symptom", ["healthy", "unknown"])
def test_a_healthy_or_unknown_job_gets_no_patch(root, symptom):
    assert propose(incident(symptom=symptom), source_root=root) == []


@pytest.mark.parametrize("category", CATEGORIES["environment"])
def test_a_fault_of_the_environment_gets_a_runbook_and_no_patch(root, category):
    found = incident(category=category, action="drain")
    assert propose(found, source_root=root) == []
    steps = runbook(found)
    assert steps is not None
    assert steps.hosts == ("n1",)
    assert any("n1" in check for check in steps.checks)
    assert any("n1" in remedy for remedy in steps.remedy)


def test_slow_storage_gets_the_runbook_of_storage(root):
    steps = runbook(incident(category="dataloader_bottleneck", action="configure"))
    assert steps is not None
    assert "Stage the data" in steps.remedy[0]
    assert runbook(incident()) is None


def test_a_stuck_job_gets_a_ladder_gentlest_first(root):
    rungs = ladder(incident())
    assert [rung.name for rung in rungs] == ["dump", "wait", "abort", "restart"]
    assert all(rung.risk for rung in rungs)
    assert ladder(incident(symptom="slow")) == ()
    assert "release" in [rung.name for rung in ladder(incident(category="blocked_io"))]


def test_source_that_does_not_parse_is_left_alone(root):
    (root / "job" / "helpers.py").write_text("def save(:\n")
    assert propose(incident(), source_root=root) == []


def test_a_missing_source_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no source folder"):
        propose(incident(), source_root=tmp_path / "none")


def test_a_bare_name_that_fits_two_files_is_not_guessed(root):
    (root / "job" / "train.py").write_text(TRAIN)
    assert locate("/elsewhere/train.py", root) is None
    assert locate("train.py", root) == "train.py"


# --- the distributed-safety gate --------------------------------------------------------------

PLAIN = "import torch.distributed as dist\ndef f(rank, x):\n    dist.all_reduce(x)\n"
REDUCE = "    dist.all_reduce(x)"
GUARDED = PLAIN.replace(REDUCE, f"    if rank == 0:\n    {REDUCE}")


@pytest.mark.parametrize(
    "after",
    [
        GUARDED,
        PLAIN.replace("    dist", "    if rank:\n        return\n    dist"),
        PLAIN.replace("    dist", "    if x.isnan().any():\n        return\n    dist"),
        PLAIN.replace(
            REDUCE, f"    bad = x.isnan().any()\n    if bad:\n        raise ValueError\n{REDUCE}"
        ),
        PLAIN.replace(REDUCE, f"    while x.item() > 0:\n    {REDUCE}"),
        PLAIN.replace(REDUCE, f"    try:\n        x()\n    except OSError:\n    {REDUCE}"),
        PLAIN.replace(
            REDUCE, f"    try:\n        x()\n    except OSError:\n        return\n{REDUCE}"
        ),
        PLAIN + "def g(rank, x):\n    if dist.get_rank() == 0:\n        f(rank, x)\n",
    ],
    ids=["rank", "early return", "data", "derived", "while", "except", "left by except",
         "through a call"],
)  # fmt: skip
def test_a_collective_made_one_sided_is_refused(after):
    assert "would depend on" in one_sided({"a.py": PLAIN}, {"a.py": after})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GUARDED, PLAIN),
        (GUARDED, GUARDED),
        (GUARDED, GUARDED.replace("        dist.all_reduce(x)", "        pass")),
        (
            PLAIN,
            PLAIN.replace("    dist", "    for i in range(9):\n      if i % 3 == 0:\n        dist"),
        ),
        (PLAIN, PLAIN + "    if x.item() > 3:\n        dist.all_reduce(x)\n"),
    ],
    ids=["cured", "as before", "taken away", "interval", "agreed before"],
)  # fmt: skip
def test_what_all_ranks_still_reach_is_allowed(before, after):
    assert one_sided({"a.py": before}, {"a.py": after}) == ""


def test_undefined_names_are_those_nothing_binds():
    text = "import os\nfor i in range(3):\n    y = os.path\n"
    text += "def f(a, *b, **c):\n    return a, b, c, zz, [q for q in b]\n"
    assert undefined_names(text) == {"zz"}
    assert undefined_names("from x import *\nprint(anything)\n") == set()


def test_the_gates_have_one_answer_each():
    gates = check([file_edit("a.py", "x = 1\n", "x = 2\n")])
    assert [gate.name for gate in gates] == [
        "inside the project", "evidence files", "ordinary files", "size", "visible", "compiles",
        "names", "collectives",
    ]  # fmt: skip
    assert all(gate.passed for gate in gates)


def test_the_docs_page_is_the_one_the_fixers_make(request):
    made = (request.config.rootpath / "docs" / "fixers.md").read_text()
    assert made == page(), "run: python -m eroica.fix.docs > docs/fixers.md"


@pytest.mark.parametrize("terms", [300, 800, 5000])
def test_a_file_that_is_nested_too_deeply_is_left_alone(root, terms):
    text = HELPERS + "\nTOTAL = " + " + ".join(["1"] * terms) + "\n"
    (root / "job" / "helpers.py").write_text(text)
    assert all(patch.gates for patch in propose(incident(), source_root=root))

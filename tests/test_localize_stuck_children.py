"""A rank that reads from a child's pipe: a forked child that hangs is the root, not the read."""

import pytest

from eroica.localize.stuck import localize_stuck
from eroica.records import JobEvidence, Place, ProcessStacks, RankEvidence, ThreadStack

SOURCE = """
def measure(state, pipe):
    net.load_state_dict(state)  # hangs
    pipe.send(1)


def validate():
    process = context.Process(target=measure)
    process.start()  # start
    return ours.recv()  # read


def main():
    validate()  # call
"""
LIBRARY = "/usr/lib/python3.11/"
TORCH = "/venv/lib/python3.11/site-packages/torch/"
RECEIVE = (
    Place(name="Connection._recv", file=f"{LIBRARY}multiprocessing/connection.py", line=395),
    Place(name="_ConnectionBase.recv", file=f"{LIBRARY}multiprocessing/connection.py", line=250),
)
LAUNCH = {
    "fork": Place(name="Popen._launch", file=f"{LIBRARY}multiprocessing/popen_fork.py", line=71),
    "spawn": Place(name="_main", file=f"{LIBRARY}multiprocessing/spawn.py", line=135),
}


def first_cause(folder, how=None, *, is_active=False):
    path = folder / "job.py"
    path.write_text(SOURCE)
    lines = {
        line.split("# ")[1]: n for n, line in enumerate(SOURCE.splitlines(), 1) if "# " in line
    }

    def user(name, mark):
        return Place(name=name, file=str(path), line=lines[mark])

    def process(pid, *frames, active=False):
        thread = ThreadStack(
            frames=frames, name="MainThread", is_main=True, os_thread_id=pid, is_active=active
        )
        return ProcessStacks(threads=(thread,), pid=pid)

    main = user("main", "call")
    load = Place(name="Module._load_from_state_dict", file=f"{TORCH}nn/modules/module.py", line=9)
    children = ()
    if how is not None:
        frames = (load, user("measure", "hangs"), LAUNCH[how])
        outer = (user("validate", "start"), main) if how == "fork" else ()
        children = (process(12, *frames, *outer, active=is_active),)
    all_reduce = Place(name="all_reduce", file=f"{TORCH}distributed/distributed_c10d.py", line=1)
    ranks = (
        RankEvidence(
            rank=0,
            stacks=(process(10, *RECEIVE, user("validate", "read"), main),),
            children=children,
        ),
        RankEvidence(rank=1, stacks=(process(11, all_reduce, main),)),
    )
    evidence = JobEvidence(ranks=ranks, world_size=2, source_root=str(folder), symptom_hint="stuck")
    return localize_stuck(evidence).causes[0], lines


def test_a_forked_child_that_hangs_in_native_code_is_the_root(tmp_path):
    cause, lines = first_cause(tmp_path, "fork")
    assert (cause.category, cause.ranks, cause.victims) == ("fork_lock_deadlock", (0,), (1,))
    assert cause.functions[0].line == lines["hangs"]
    assert "child process 12" in cause.why[0]


@pytest.mark.parametrize(
    "given", [{}, {"how": "spawn"}, {"how": "fork", "is_active": True}], ids=str
)
def test_without_a_forked_child_that_hangs_the_read_itself_is_the_root(tmp_path, given):
    cause, lines = first_cause(tmp_path, **given)
    assert (cause.category, cause.ranks) == ("blocked_io", (0,))
    assert cause.functions[0].line == lines["read"]

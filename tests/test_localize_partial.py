"""Evidence that is partial, long, uneven or of an odd form.

No rank is blamed for what was not seen, and no fact of another form ends a diagnosis.
"""

import gc
import weakref
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from eroica.config import Parameters
from eroica.localize import localize_slow
from eroica.localize.counterfactual import slowest
from eroica.localize.missing import absent_phrase
from eroica.localize.ranking import EXPLAINS, rank_drafts
from eroica.localize.rules.draft import Draft
from eroica.localize.rules.flights import held_by_rank
from eroica.localize.rules.phase import (
    EVAL_WORDS,
    INPUT_WORDS,
    LOG_WORDS,
    SAVE_WORDS,
    says,
    statement_at,
)
from eroica.localize.rules.told import is_well_formed
from eroica.localize.rules.view import build_view
from eroica.localize.rules.zones import frame_zone
from eroica.localize.source import Project
from eroica.records import (
    CounterUse,
    Finding,
    FlightRecord,
    HostEvidence,
    LogEvent,
    Place,
    SampledStack,
    Setting,
)
from tests.make_patterns import make_patterns
from tests.make_slow import Program, flight, job, samples, setting, steps

SOURCE = """
import torch
from torch.distributed import all_reduce


def hook(state, bucket):
    all_reduce(bucket)  # wire


def meet(state, bucket):
    barrier()  # meet


def pairs(z):
    total = 0
    for i in range(len(z)):
        for j in range(len(z)):
            total += z[i] * z[j]  # one
            total -= z[i] * z[j]  # two
            total *= z[i] * z[j]  # three
    return total


def main():
    for x in loader:  # next
        loss = model(x)  # forward
        loss = pairs(loss)  # pairs
        loss.backward()  # backward
        optimizer.step()  # step
        plain = 1  # p1
        plain = 2  # p2
        plain = 3  # p3
"""
BACK = "main:backward backward engine"


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, SOURCE)


def rank(program, *rows, busy=90, wait=10, **more):
    training = [(busy + wait, busy, BACK), (10, 10, "main:step optimizer")]
    forward = [(20, 20, "main:forward forward")]
    return {"samples": samples(program, [*rows, *training, *forward]), **more}


def diagnose(program, *ranks, **more):
    return localize_slow([], evidence=msgspec.structs.replace(job(program, ranks), **more))


# --- ranks of which no stack was seen ---------------------------------------------------------


@pytest.mark.parametrize("others", [1, 3])
def test_a_rank_is_not_slow_because_it_is_the_only_one_whose_stacks_were_seen(program, others):
    verdict = diagnose(program, rank(program), *[{}] * others)
    assert verdict.symptom == ("healthy" if others == 1 else "unknown")
    assert verdict.not_seen[0].startswith("no stacks of rank")


def test_the_slow_rank_is_told_among_those_seen(program):
    slow = rank(program, busy=190, wait=10)
    fast = rank(program, busy=40, wait=160)
    cause = diagnose(program, fast, {}, slow, fast, {}).causes[0]
    assert cause.ranks == (2,)
    assert cause.share == diagnose(program, fast, slow, fast).causes[0].share


def test_what_all_seen_ranks_do_counts_in_full(program):
    row = (80, 80, "main:p1")
    seen = diagnose(program, rank(program, row), rank(program, row)).causes[0]
    partly = diagnose(program, rank(program, row), rank(program, row), {}, {}, {}).causes[0]
    assert (partly.category, partly.share) == (seen.category, seen.share)


def test_ranks_not_seen_are_left_out_of_the_comparison():
    found = slowest(np.array([0.0, 0.4, 0.9, 0.41]), np.array([False, True, True, True]))
    assert (found.positions, found.share) == ((2,), pytest.approx(0.49))
    assert slowest(np.array([0.9, 0.0]), np.array([True, False])) is None


# --- stacks that differ in a line from rank to rank -------------------------------------------


def test_plain_python_at_another_line_on_each_rank_is_still_the_same_python(program):
    ranks = [rank(program, (110, 110, f"main:{line}")) for line in ("p1", "p2", "p3")]
    cause = diagnose(program, *ranks).causes[0]
    assert (cause.category, cause.ranks) == ("python_overhead", "all")
    assert cause.functions[0].name == "main"


def test_element_wise_loops_at_another_line_on_each_rank_are_named(program):
    ranks = [rank(program, (90, 90, f"main:pairs pairs:{at}")) for at in ("one", "two", "three")]
    verdict = diagnose(program, *ranks)
    assert "pairs" in {c.functions[0].name for c in verdict.causes}


# --- facts counted since the start, steps only as far back as the ring ------------------------


def saves(program, total_ms):
    value = {"count": 100, "total_ns": int(total_ms * 1e6), "max_ns": 1, "bytes": 1}
    return setting(program, "checkpoint.saves", value, "main:step")


@pytest.mark.parametrize(("first_step", "is_cause"), [(0, True), (100_000, False)])
def test_saves_are_held_against_all_steps_so_far(program, first_step, is_cause):
    ring = msgspec.structs.replace(steps([50] * 200), first_step=first_step)
    one = rank(program, steps=ring, settings=(saves(program, 5_000),))
    verdict = diagnose(program, one, rank(program, steps=ring))
    assert (verdict.symptom == "slow") is is_cause
    if is_cause:
        assert (verdict.causes[0].category, verdict.causes[0].share) == ("checkpoint_overhead", 0.5)


def compiled(program, count, seconds):
    row = {"name": "pairs", "file": str(program.path), "line": 1, "count": count}
    value = {"count": count - 1, "total_s": seconds, "by_function": [row | {"seconds": seconds}]}
    return setting(program, "compile.recompiles", value)


@pytest.mark.parametrize(
    ("first_step", "count", "is_cause"), [(0, 10, True), (0, 1, False), (100_000, 10, False)]
)
def test_compiling_is_held_against_all_steps_so_far_less_the_first_time(
    program, first_step, count, is_cause
):
    ring = msgspec.structs.replace(steps([50] * 200), first_step=first_step)
    ranks = [rank(program, steps=ring, settings=(compiled(program, count, 5.0),))] * 2
    verdict = diagnose(program, *ranks)
    assert (verdict.symptom == "slow") is is_cause
    if is_cause:
        assert (verdict.causes[0].ranks, verdict.causes[0].share) == ("all", 0.45)


def test_the_one_rank_that_compiles_again_is_named_alone(program):
    dynamo = (150, 150, "main:forward dynamo")
    odd = rank(
        program, dynamo, steps=steps([50] * 60), settings=(compiled(program, 30, 2.0),), wait=0
    )
    even = rank(program, busy=40, wait=200, steps=steps([50] * 60))
    cause = diagnose(program, even, odd, even, even).causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("recompilation", (1,), (0, 2, 3))


# --- facts of another form --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu.schedule", 3),
        ("cpu.schedule", {}),
        ("cpu.schedule", {"on_cpu_ns": "x", "waiting_ns": None}),
        ("cpu.schedule", {"on_cpu_ns": float("nan"), "waiting_ns": 1}),
        ("profiler.runs", {}),
        ("profiler.runs", {"count": True, "live_ns": 1, "exit_ns": 1}),
        ("dataloader", {"num_workers": "many"}),
        ("dataloader", {"num_workers": 2, "iterators_started": [1]}),
        ("dataloader", {"dataset_len": [1]}),
        ("gc.pauses", {"explicit_count": "x"}),
        ("compile.recompiles", {"by_function": 3}),
        ("compile.recompiles", {"by_function": [3]}),
        ("compile.recompiles", {"by_function": [{"count": "x"}]}),
        ("compile.recompiles", {"total_s": "x"}),
        ("checkpoint.saves", {"count": "x"}),
    ],
)
def test_a_fact_of_another_form_is_left_out_with_a_warning(program, key, value):
    odd = rank(program, steps=steps([50] * 60), settings=(Setting(key=key, value=value),))
    verdict = diagnose(program, odd, rank(program, steps=steps([50] * 60)))
    assert verdict.symptom == "healthy"
    (warning,) = verdict.warnings
    assert "rank 0" in warning.what
    assert key in warning.what


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu.schedule", {"on_cpu_ns": 5, "waiting_ns": 0}),
        ("gc.pauses", {"count": 3, "max_ns": None}),
        ("dataloader", {"num_workers": 0, "sampler": "RandomSampler", "dataset_len": None}),
        ("compile.recompiles", {"count": 1, "total_s": 0.5, "by_function": None}),
        ("anything_else", object),
    ],
)
def test_facts_as_the_hook_tells_them_are_kept(key, value):
    assert is_well_formed(Setting(key=key, value=value))


@pytest.mark.parametrize("value", ["many", [3], {}, -1, float("nan")])
@pytest.mark.parametrize("key", ["local_world_size", "cpu_count", "cpu_affinity", "num_threads"])
def test_a_plain_fact_that_is_no_number_ends_no_diagnosis(program, key, value):
    facts = {"num_threads": 64, "cpu_count": 4} | {key: value}
    told = tuple(Setting(key=k, value=v) for k, v in facts.items())
    ranks = [rank(program, settings=told)] * 2
    assert diagnose(program, *ranks).symptom in ("healthy", "slow")


def test_steps_without_duration_end_no_diagnosis(program):
    still = rank(program, steps=steps([0] * 60), settings=(saves(program, 1),))
    assert diagnose(program, still, rank(program, steps=steps([0] * 60))).symptom == "healthy"


def test_one_rank_with_few_steps_does_not_hide_growth(program):
    grow = steps([10 + 0.5 * i for i in range(100)])
    row = (80, 80, "main:p1")
    full, late = rank(program, row, steps=grow), rank(program, row, steps=steps([60] * 5))
    causes = diagnose(program, full, late, full).causes
    assert "growing_state" in {c.category for c in causes}


# --- what all rules share ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "category"), [("hook:wire", "straggler_network"), ("meet:meet", None)]
)
def test_a_collective_imported_by_name_is_one_and_a_barrier_carries_nothing(
    program, call, category
):
    slow = rank(program, (150, 0, f"{BACK} {call}"), busy=40, wait=0)
    fast = rank(program, (10, 0, f"{BACK} {call}"), busy=40, wait=140)
    causes = diagnose(program, fast, fast, slow, fast).causes
    assert ("straggler_network" in {c.category for c in causes}) is (category is not None)


def draft(rule, share, **more):
    given = {"category": rule, "places": (Place(name="f", file="a.py", line=1),)} | more
    return Draft(rule=rule, ranks="all", share=share, confidence=0.7, summary=rule, **given)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_what_a_rule_says_of_a_place_stands_before_what_the_past_says_of_it(share):
    past = draft("baseline", 0.4, why=["slower"], findings=[Finding(id="", kind="baseline")])
    named = draft("bookkeeping", share, why=["logs"], findings=[Finding(id="", kind="pattern")])
    (kept,) = rank_drafts([past, named], Parameters())
    assert (kept.rule, sorted(kept.why)) == ("bookkeeping", ["logs", "slower"])
    assert {f.kind for f in kept.findings} == {"baseline", "pattern"}


def test_a_send_has_the_number_of_the_collective_before_it_and_is_none(program):
    calls = [("all_reduce", f"{BACK} all_reduce", 10)]
    records = [flight(program, r, calls, num_steps=20) for r in range(2)]
    late = [
        msgspec.structs.replace(
            e, is_p2p=True, record_id=e.record_id + 1000, created_ns=e.created_ns + 10_000_000
        )
        for e in records[1].entries
    ]
    records[1] = msgspec.structs.replace(records[1], entries=(*records[1].entries, *late))
    ranks = [{"flight": one, "steps": steps([50] * 20)} for one in records]
    view = build_view([], job(program, ranks), Parameters())
    assert sum(held_by_rank(view).values()) == 0


def test_a_statement_looked_up_does_not_keep_its_project_alive(tmp_path):
    program = Program(tmp_path, SOURCE)
    project = Project(tmp_path)
    place = program.place("main:pairs")
    info = project.enclosing(place.file, place.line)
    assert statement_at(info, place.line).lineno == place.line
    alive = weakref.ref(info.module)
    del info, project
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("present", "world_size", "text"),
    [
        ((0, 2, 3), 4, "rank 1"),
        ((0, 2, 3), 3_000_000, "ranks 1,4-2999999"),
        ((), 2, "ranks 0-1"),
        ((0, 1), 2, ""),
        ((-1, 5), 2, "ranks 0-1"),
        (range(0, 40, 2), 40, f"ranks {','.join(str(r) for r in range(1, 33, 2))} and 4 more"),
    ],
)
def test_absent_ranks_are_named_without_counting_through_them(present, world_size, text):
    assert absent_phrase(present, world_size) == text


def test_thousands_of_ranks_with_as_many_log_lines_and_facts_take_no_time(program):
    """Rules once looked through all events, or all other ranks' facts, for each rank."""
    count = 3000
    fact = (Setting(key="num_threads", value=1), Setting(key="local_world_size", value=8))
    ranks = [{"settings": fact, "steps": steps([50] * 3)}] * count
    events = tuple(LogEvent(kind="xid", text="", rank=r, fields={"xid": 13}) for r in range(count))
    import time

    begin = time.process_time()
    verdict = diagnose(program, *ranks, log_events=events, world_size=10**9)
    assert time.process_time() - begin < 5.0
    assert "999999999" in verdict.not_seen[0]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("Meter.log", "log"),
        ("dump_stats", "log"),
        ("tb_logger", "log"),
        ("statistics", "log"),
        ("compute_logits", ""),
        ("log_softmax", ""),
        ("update_state", ""),
        ("symmetric_loss", ""),
        ("fingerprint", ""),
        ("save_state_dict", "save"),
        ("evaluate", "eval"),
        ("retrieval_loss", ""),
        ("load_latest", "input"),
        ("async_fetch", "input"),
        ("encode_text", "input"),
        ("transform", "input"),
        ("transformer_block", ""),
        ("feed_forward", ""),
        ("sparse_mask", ""),
        ("thread_main", ""),
        ("batch_norm", ""),
    ],
)
def test_a_word_within_another_one_is_not_meant(name, kinds):
    words = {"log": LOG_WORDS, "save": SAVE_WORDS, "eval": EVAL_WORDS, "input": INPUT_WORDS}
    assert [kind for kind, some in words.items() if says(name, some)] == kinds.split()


@pytest.mark.parametrize(
    ("file", "name", "zone"),
    [
        ("torch/utils/data/dataloader.py", "__next__", "loader"),
        ("torch/utils/data/dataloader.py", "_try_get_data", "loader_wait"),
        ("torch/utils/data/dataloader.py", "__init__", "loader_start"),
        ("torchdata/stateful_dataloader/stateful_dataloader.py", "__next__", "loader"),
        ("torchdata/stateful_dataloader/stateful_dataloader.py", "_get_data", "loader_wait"),
        ("torch/utils/tensorboard/writer.py", "add_scalar", "logging"),
        ("comet_ml/experiment.py", "log_metric", "logging"),
        ("torch/optim/adam.py", "step", "optimizer"),
        ("apex/optimizers/fused_adam.py", "step", "optimizer"),
        ("bitsandbytes/optim/optimizer.py", "step", "optimizer"),
        ("deepspeed/runtime/zero/stage_1_and_2.py", "step", "optimizer"),
        ("torch/serialization.py", "save", "checkpoint"),
        ("safetensors/torch.py", "save_file", "checkpoint"),
        ("torch/distributed/checkpoint/state_dict_saver.py", "save", "checkpoint"),
        ("requests/api.py", "get", None),
    ],
)
def test_what_a_library_frame_means_is_told_of_other_libraries_than_torch_too(file, name, zone):
    path = f"/usr/lib/python3.11/site-packages/{file}"
    assert frame_zone(Place(name=name, file=path, line=1)) == zone
    assert frame_zone(Place(name=name, file=f"/home/u/{file}", line=1)) is None


@pytest.mark.parametrize(
    ("rule", "ranks", "share", "stands"),
    [
        ("dataloader", "all", 0.10, True),
        ("dataloader", "all", 0.099, False),
        ("dataloader", (1,), 0.05, True),
        ("dataloader", (1,), 0.049, False),
        ("baseline", "all", 0.05, True),
        ("baseline", "all", 0.049, False),
    ],
)
def test_a_cause_stands_from_its_floor_on(rule, ranks, share, stands):
    one = draft(rule, share)
    one.ranks = ranks
    assert (rank_drafts([one], Parameters()) == [one]) is stands


@pytest.mark.parametrize(("claims", "is_left"), [(0.2, True), (0.4, False), (0.41, False)])
def test_a_vaguer_cause_gives_way_to_a_sharper_one_that_holds_two_fifths_of_it(claims, is_left):
    sharp, vague = draft("gc", 0.2), draft("straggler", 1.0)
    sharp.claims = claims
    assert (vague in rank_drafts([sharp, vague], Parameters())) is is_left


def test_no_two_causes_explain_each_other_away():
    for rule, explained in EXPLAINS.items():
        for other in explained:
            assert rule not in EXPLAINS.get(other, ()), (rule, other)


# --- who holds the others ---------------------------------------------------------------------


def test_whoever_arrives_last_is_late_whatever_its_own_work_looks_like():
    """Patterns say rank 2, the arrivals of the same window say rank 1: nobody is blamed."""
    patterns = list(make_patterns(4, {2}, collectives=20))
    assert localize_slow(patterns).causes[0].ranks == (2,)
    one, two = patterns[1], patterns[2]
    patterns[1] = replace(one, arrivals=two.arrivals)
    patterns[2] = replace(two, arrivals=one.arrivals)
    causes = localize_slow(patterns).causes
    assert all(c.ranks == "all" or 2 not in c.ranks for c in causes)


@pytest.mark.parametrize(("turns_of_the_slow", "is_cause"), [(11, False), (16, True)])
def test_a_rank_that_is_last_no_more_often_than_by_turns_holds_nobody(turns_of_the_slow, is_cause):
    """Patterns say rank 1; the arrivals of the same window, how often it was last of two."""
    patterns = list(make_patterns(2, {1}, collectives=20))
    long, short = 139_000_000, 5_000_000
    is_last = np.arange(20) < turns_of_the_slow
    for rank, stays in ((0, np.where(is_last, long, short)), (1, np.where(is_last, short, long))):
        arrivals = patterns[rank].arrivals
        arrivals = replace(arrivals, start_ns_C=arrivals.end_ns_C - stays)
        patterns[rank] = replace(patterns[rank], arrivals=arrivals)
    causes = localize_slow(patterns).causes
    assert ((1,) in [cause.ranks for cause in causes]) is is_cause


def schedule(cpu, waiting):
    return (Setting(key="cpu.schedule", value={"on_cpu_ns": cpu, "waiting_ns": waiting}),)


@pytest.mark.parametrize(("waiting", "is_cause"), [(0, True), (30, False)])
def test_a_rank_that_only_waits_longer_for_a_core_does_not_work_more(program, waiting, is_cause):
    slow = rank(program, busy=150, wait=0, settings=schedule(20, waiting))
    fast = rank(program, busy=50, wait=100, settings=schedule(50, 0))
    causes = diagnose(program, fast, slow, fast, fast).causes
    assert ((1,) in [c.ranks for c in causes]) is is_cause


@pytest.mark.parametrize(("busy", "is_cause"), [(60, True), (35, False)])
def test_who_waits_more_than_it_works_holds_nobody_without_the_recorders_word(
    program, busy, is_cause
):
    """``plain`` work that only rank 1 does; of its own time it works a half, or a third."""
    row = (busy, busy, "main:p1")
    slow = rank(program, row, busy=0, wait=120 - busy)
    fast = rank(program, busy=0, wait=120)
    causes = diagnose(program, fast, slow, fast, fast).causes
    assert ((1,) in [c.ranks for c in causes]) is is_cause


@pytest.mark.parametrize("has_groups", [True, False])
def test_ranks_that_hold_one_model_together_read_the_same_part_by_right(program, has_groups):
    """Four ranks, the model over two of them each: two replicas are no mistake."""
    groups = {"0": (0, 1, 2, 3), "dp_0": (0, 2), "dp_1": (1, 3)} if has_groups else {}
    told = {"sampler": "DistributedSampler", "dataset_len": 100, "num_replicas": 2}
    ranks = [
        rank(
            program,
            settings=(
                setting(program, "dataloader", told | {"sampler_rank": r // 2}, "main:next"),
            ),
            flight=FlightRecord(rank=r, version="2.10", groups=groups),
        )
        for r in range(4)
    ]
    causes = diagnose(program, *ranks).causes
    assert ("sampler_misconfiguration" in {c.category for c in causes}) is not has_groups


def test_a_loader_of_odd_names_is_left_out(program):
    fact = Setting(key="dataloader", value={"sampler": ["RandomSampler"], "dataset_len": 3})
    assert not is_well_formed(fact)


def test_stacks_without_frames_and_without_knowing_who_was_on_cpu_end_no_diagnosis(program):
    """As py-spy gives them of a thread that is in no Python code."""
    load = "main:next loader fetch main:forward"
    one = samples(program, [(60, 0, load), (40, 0, BACK)])
    empty = SampledStack(frames=(), count=50, thread="MainThread")
    seen = msgspec.structs.replace(one, stacks=(*one.stacks, empty))
    slow = msgspec.structs.replace(seen, stacks=(one.stacks[0], empty))
    assert diagnose(program, {"samples": seen}, {"samples": slow}).symptom in ("slow", "healthy")


def test_a_port_that_counts_nonsense_is_left_alone(program):
    hosts = tuple(
        HostEvidence(host=h, counters={"ib.m.link_bits_per_s": CounterUse(mean=m, low=m, high=m)})
        for h, m in (("host0", -1.0), ("h1", 0.0))
    )
    assert diagnose(program, rank(program), rank(program), hosts=hosts).symptom == "healthy"

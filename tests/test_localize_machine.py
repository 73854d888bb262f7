"""Memory, devices, barriers and uneven steps: what is named, what is not, and why not."""

from dataclasses import replace

import numpy as np
import pytest

from eroica.columns import Arrivals, RankPatterns
from eroica.localize import localize_slow
from eroica.records import (
    CollectiveEntry,
    CounterUse,
    FlightRecord,
    Function,
    HostEvidence,
    JobEvidence,
    LogEvent,
    Place,
    RankEvidence,
    Setting,
)
from eroica.simulate.cluster import Cluster
from eroica.simulate.evidence import patterns_of, simulate_evidence
from eroica.simulate.faults import Fault
from eroica.simulate.tables import simulate_table
from tests.make_slow import Program, flight, job, samples, steps

SOURCE = """
import torch.distributed as dist


def sync(step):
    dist.barrier()  # barrier


def main():
    for x in loader:
        loss = model(x)
        loss.backward()  # backward
        optimizer.step()  # step
        sync(1)  # sync
"""
BACK = "main:backward backward engine"
BARRIER = "main:sync sync:barrier barrier"


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, SOURCE)


# --- barriers ---------------------------------------------------------------------------------


def ranks_with_barriers(program, calls, in_barrier, world_size=4):
    rows = [(160 - in_barrier, 160 - in_barrier, BACK), (30, 30, "main:step optimizer")]
    rows += [(in_barrier, 2, BARRIER)] if in_barrier else []
    return [
        {
            "samples": samples(program, rows),
            "flight": flight(program, rank, calls),
            "steps": steps([50.0] * 20),
        }
        for rank in range(world_size)
    ]


def diagnose(program, ranks):
    return localize_slow([], evidence=job(program, ranks))


def test_several_barriers_a_step_that_cost_it_are_named_at_their_call(program):
    calls = [("all_reduce", BACK, 4_000_000)] + [("barrier", BARRIER, 1)] * 3
    cause = diagnose(program, ranks_with_barriers(program, calls, 50)).causes[0]
    assert (cause.category, cause.ranks, cause.action) == ("excessive_barriers", "all", "patch")
    assert [f.name for f in cause.functions] == ["sync", "main"]
    assert cause.functions[0].line == program.lines["barrier"]
    assert cause.share == pytest.approx(50 / 190, abs=0.01)
    assert "3.0 barriers a step" in cause.summary


def test_a_barrier_a_step_that_costs_little_is_no_cause(program):
    calls = [("all_reduce", BACK, 4_000_000), ("barrier", BARRIER, 1)]
    assert diagnose(program, ranks_with_barriers(program, calls, 10)).symptom == "healthy"


def test_a_barrier_every_tenth_step_is_not_excessive_whatever_it_holds(program):
    ranks = ranks_with_barriers(program, [("all_reduce", BACK, 4_000_000)], 50)
    for rank in ranks:
        record = rank["flight"]
        sparse = flight(program, record.rank, [("barrier", BARRIER, 1)]).entries[::10]
        entries = sorted((*record.entries, *sparse), key=lambda e: e.created_ns)
        numbered = [
            CollectiveEntry(
                record_id=n,
                op=e.op,
                group="0",
                sequence=n,
                created_ns=e.created_ns,
                frames=e.frames,
            )
            for n, e in enumerate(entries)
        ]
        rank["flight"] = FlightRecord(
            rank=record.rank, version="2.10", groups={}, entries=tuple(numbered)
        )
    causes = diagnose(program, ranks).causes
    assert "excessive_barriers" not in [c.category for c in causes]


def test_waiting_in_a_barrier_for_one_rank_is_that_ranks_doing(program):
    calls = [("all_reduce", BACK, 4_000_000), ("barrier", BARRIER, 1)]
    ranks = ranks_with_barriers(program, calls, 90)
    ranks[2]["samples"] = samples(
        program, [(158, 158, BACK), (30, 30, "main:step optimizer"), (2, 1, BARRIER)]
    )
    cause = diagnose(program, ranks).causes[0]
    assert (cause.ranks, cause.category) == ((2,), "load_imbalance")


def test_without_a_recorder_stacks_in_barriers_are_enough(program):
    ranks = ranks_with_barriers(program, [], 60)
    for rank in ranks:
        del rank["flight"]
    cause = diagnose(program, ranks).causes[0]
    assert (cause.category, cause.functions[0].name) == ("excessive_barriers", "sync")


# --- memory that runs short -------------------------------------------------------------------


def use(mean, increase=None):
    return CounterUse(mean=mean, low=mean, high=mean, increase=increase, seconds=60.0)


def evidence(counters=None, hosts=None, events=(), ranks=4, a_host=2):
    """``counters`` by rank, ``hosts`` by number of the host."""
    counters, hosts = counters or {}, hosts or {}
    return JobEvidence(
        world_size=ranks,
        ranks=tuple(
            RankEvidence(rank=r, host=f"h{r // a_host}", counters=counters.get(r, {}))
            for r in range(ranks)
        ),
        hosts=tuple(
            HostEvidence(host=f"h{n}", counters=hosts.get(n, {})) for n in range(ranks // a_host)
        ),
        log_events=tuple(events),
    )


def patterns(slow=(), excess=0.3, ranks=4, a_host=2, kind="python"):
    """The slow ranks spend that much longer in one function; the others wait for them."""
    functions = (
        Function(id="f", kind=kind, name="forward", file="model.py", line=3),
        Function(id="c", kind="collective", name="all_reduce"),
    )
    made = []
    for rank in range(ranks):
        work = 0.5 + (excess if rank in slow else 0.0)
        beta = np.array([work, 0.95 - work], np.float32)
        made.append(
            RankPatterns(
                rank=rank,
                functions=functions,
                beta_F=beta,
                mu_F=np.array([0.9, 0.5], np.float32),
                sigma_F=np.full(2, 0.1, np.float32),
                count_F=np.full(2, 10, np.int32),
                total_ns_F=(beta * 1e9).astype(np.int64),
                window_ns=1_000_000_000,
                num_steps=10,
                host=f"h{rank // a_host}",
            )
        )
    return made


def test_a_host_whose_tasks_stall_for_memory_is_named_with_its_ranks():
    seen = evidence(hosts={1: {"pressure.memory": use(0.31), "vm.swap_in_pages_per_s": use(900)}})
    cause = localize_slow(patterns(slow=(2, 3)), evidence=seen).causes[0]
    assert (cause.category, cause.ranks, cause.hosts) == ("memory_pressure", (2, 3), ("h1",))
    assert cause.action == "configure"
    assert cause.share == pytest.approx(0.31, abs=0.01)
    assert any("come back from swap" in line for line in cause.why)


def test_of_pressure_on_two_hosts_the_worse_one_costs_what_it_is_beyond_the_other():
    told = {0: {"pressure.memory": use(0.14)}, 1: {"pressure.memory": use(0.30)}}
    cause = localize_slow(patterns(), evidence=evidence(hosts=told)).causes[0]
    assert (cause.ranks, cause.share) == ((2, 3), pytest.approx(0.16))


def test_pressure_everywhere_is_a_cause_of_all_ranks():
    told = {"pressure.memory": use(0.2)}
    cause = localize_slow(patterns(), evidence=evidence(hosts={0: told, 1: told})).causes[0]
    assert (cause.category, cause.ranks) == ("memory_pressure", "all")


def test_major_faults_alone_are_reads_of_mapped_data_and_no_cause():
    seen = evidence({2: {"rank.major_faults_per_s": use(2_000)}})
    assert localize_slow(patterns(), evidence=seen).symptom == "healthy"


def test_pressure_below_the_floor_is_no_cause():
    seen = evidence(hosts={0: {"pressure.memory": use(0.04), "vm.swap_in_pages_per_s": use(20)}})
    assert localize_slow(patterns(), evidence=seen).symptom == "healthy"


def test_a_limit_that_is_hit_counts_where_the_rank_holds_the_others():
    hits = {"cgroup.memory_limit_hits": use(3.0, increase=180)}
    held = localize_slow(patterns(slow=(1,)), evidence=evidence({1: hits})).causes[0]
    assert (held.category, held.ranks) == ("memory_pressure", (1,))
    assert localize_slow(patterns(), evidence=evidence({1: hits})).symptom == "healthy"


def test_pressure_does_not_take_the_blame_for_a_far_slower_rank_elsewhere():
    seen = evidence(hosts={0: {"pressure.memory": use(0.06)}})
    causes = localize_slow(patterns(slow=(3,), excess=0.4), evidence=seen).causes
    assert causes[0].ranks == (3,) and causes[0].category != "memory_pressure"


# --- devices ----------------------------------------------------------------------------------


def xid(number, *, rank=None, host=None):
    text = f"NVRM: Xid (PCI:0000:3b:00): {number}"
    return LogEvent(kind="xid", text=text, rank=rank, host=host, fields={"xid": number})


def test_uncorrected_errors_on_a_slow_rank_are_its_gpu():
    seen = evidence({2: {"gpu0.ecc_uncorrected_errors": use(0.0, increase=2)}})
    cause = localize_slow(patterns(slow=(2,), kind="kernel"), evidence=seen).causes[0]
    assert (cause.category, cause.ranks, cause.action) == ("gpu_fault", (2,), "drain")
    assert cause.share == pytest.approx(0.3, abs=0.01)
    assert cause.confidence == pytest.approx(0.9)


def test_a_broken_device_is_named_before_it_costs_anything():
    seen = evidence({2: {"gpu0.ecc_uncorrected_errors": use(0.0, increase=2)}})
    cause = localize_slow(patterns(), evidence=seen).causes[0]
    assert (cause.category, cause.share) == ("gpu_fault", None)
    assert cause.against == ("The rank is not seen to hold the others yet.",)


@pytest.mark.parametrize("excess", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_a_broken_device_stands_however_little_it_costs(excess):
    seen = evidence({2: {"gpu0.ecc_uncorrected_errors": use(0.0, increase=2)}})
    causes = localize_slow(patterns(slow=(2,), excess=excess), evidence=seen).causes
    assert (causes[0].category, causes[0].ranks) == ("gpu_fault", (2,))


@pytest.mark.parametrize(("number", "is_cause"), [(94, True), (79, True), (13, False), (31, False)])
def test_only_an_xid_of_the_machine_is_a_fault(number, is_cause):
    verdict = localize_slow(patterns(), evidence=evidence(events=[xid(number, rank=1)]))
    assert [c.category for c in verdict.causes] == ["gpu_fault"] * is_cause


def test_an_xid_of_a_host_means_the_rank_there_that_holds_the_others():
    seen = evidence(events=[xid(94, host="h1")])
    assert localize_slow(patterns(slow=(3,)), evidence=seen).causes[0].ranks == (3,)
    assert localize_slow(patterns(), evidence=seen).causes[0].ranks == (2, 3)


def clocks(slow, low_hz):
    return {r: {f"gpu{r % 2}.sm_clock_hz": use(low_hz if r in slow else 1.755e9)} for r in range(4)}


def test_a_low_clock_is_a_throttled_gpu_only_where_the_rank_holds_the_others():
    seen = evidence(clocks((1,), 1.2e9))
    cause = localize_slow(patterns(slow=(1,), kind="kernel"), evidence=seen).causes[0]
    assert (cause.category, cause.ranks, cause.action) == ("gpu_throttled", (1,), "drain")
    assert "1200 MHz, 1755 on the peers" in cause.summary
    assert localize_slow(patterns(kind="kernel"), evidence=seen).symptom == "healthy"


def test_equal_clocks_leave_a_slow_rank_to_the_other_rules():
    cause = localize_slow(patterns(slow=(1,)), evidence=evidence(clocks((), 1))).causes[0]
    assert (cause.category, cause.ranks) == ("straggler_compute", (1,))


def test_a_narrow_link_is_named_beside_wide_ones():
    widths = {
        r: {"gpu0.link_width": use(4 if r == 1 else 16), "gpu0.link_width_limit": use(16)}
        for r in range(4)
    }
    cause = localize_slow(patterns(slow=(1,), kind="memory"), evidence=evidence(widths)).causes[0]
    assert (cause.category, cause.ranks) == ("pcie_degraded", (1,))
    assert "x4, x16 on the peers" in cause.summary


def test_link_errors_in_a_row_are_the_links_and_single_ones_are_normal():
    for errors, category in ((6_000, "nvlink_degraded"), (3, "straggler_compute")):
        counted = {1: {"gpu0.nvlink_crc_errors": use(0.0, increase=errors)}}
        cause = localize_slow(patterns(slow=(1,)), evidence=evidence(counted)).causes[0]
        assert (cause.category, cause.ranks) == (category, (1,))


# --- simulated jobs with counters -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ranks", "severity"),
    [("memory_pressure", tuple(range(16, 24)), 0.25), ("gpu_fault", (13,), 1.3)],
)
def test_counters_tell_what_patterns_alone_cannot(kind, ranks, severity):
    cluster, fault = Cluster(64), Fault(kind, ranks, severity)
    table, _ = simulate_table(cluster, [fault])
    seen = simulate_evidence(cluster, [fault])
    cause = localize_slow(patterns_of(table), evidence=seen).causes[0]
    assert (cause.category, cause.ranks) == (kind, ranks)


def test_counters_of_healthy_clusters_have_no_cause():
    for seed in range(5):
        table, _ = simulate_table(Cluster(32), seed=seed)
        seen = simulate_evidence(Cluster(32), seed=seed)
        assert localize_slow(patterns_of(table), evidence=seen).symptom == "healthy", seed


# --- a different rank late each time ----------------------------------------------------------


def turns(late_ms, *, world_size=4, meetings=20, fixed=None, name="gemm"):
    """Rank ``k % world_size`` comes late to meeting k; ``fixed`` is always late by as much."""
    functions = (
        Function(id="f", kind="kernel", name=name, stack=(Place(name="train", file="train.py"),)),
        Function(id="c", kind="collective", name="all_reduce"),
    )
    step_ns = 100_000_000
    wait = late_ms / 100 * (1 - 1 / world_size)
    made = []
    for rank in range(world_size):
        ends = (np.arange(meetings, dtype=np.int64) + 1) * step_ns
        late = np.array(
            [late_ms if k % world_size == rank or rank == fixed else 0.0 for k in range(meetings)]
        )
        beta = np.array([0.9 - wait, wait], np.float32)
        made.append(
            RankPatterns(
                rank=rank,
                functions=functions,
                beta_F=beta,
                mu_F=np.full(2, 0.9, np.float32),
                sigma_F=np.full(2, 0.1, np.float32),
                count_F=np.full(2, meetings, np.int32),
                total_ns_F=(beta * step_ns * meetings).astype(np.int64),
                window_ns=step_ns * meetings,
                num_steps=meetings,
                host="h0",
                arrivals=Arrivals(
                    key_C=tuple(f"dp|all_reduce|{k}" for k in range(meetings)),
                    start_ns_C=ends - ((late_ms + 1 - late) * 1e6).astype(np.int64),
                    end_ns_C=ends,
                    num_bytes_C=np.full(meetings, 4_000_000),
                    culprit_C=("f",) * meetings,
                ),
            )
        )
    return made


def test_ranks_that_take_turns_in_coming_late_are_an_imbalance_of_all():
    cause = localize_slow(turns(40)).causes[0]
    assert (cause.category, cause.ranks, cause.action) == ("load_imbalance", "all", "patch")
    assert cause.share == pytest.approx(0.4 * 3 / 4, abs=0.01)
    assert cause.functions[0].name in ("gemm", "train")


def test_small_jitter_of_all_ranks_is_healthy():
    assert localize_slow(turns(8)).symptom == "healthy"


def test_one_rank_that_is_always_late_is_not_called_taking_turns():
    found = localize_slow(turns(0.0, fixed=None)).causes
    assert not found
    made = turns(40, fixed=2, world_size=8)
    rules = [c.summary for c in localize_slow(made).causes]
    assert not any("different rank is last" in text for text in rules)


def test_pauses_in_few_steps_are_not_uneven_work():
    made = turns(0.0, meetings=40)
    for one in made:
        start = one.arrivals.start_ns_C.copy()
        if one.rank != 1:
            start[5] -= 900_000_000
        if one.rank != 3:
            start[25] -= 900_000_000
        object.__setattr__(one, "arrivals", replace(one.arrivals, start_ns_C=start))
    assert not localize_slow(made).causes


def issued(program, late_ms, world_size=4, num_steps=30, waiting=2):
    """Recorders of one host: rank ``step % world_size`` issues late, the others wait for it."""
    ranks = []
    for rank in range(world_size):
        entries = [
            CollectiveEntry(
                record_id=step,
                op="all_reduce",
                group="0",
                sequence=step + 1,
                input_sizes=((4_000_000,),),
                input_dtypes=("Float",),
                created_ns=int(
                    (100 * step + 40 + (late_ms if step % world_size == rank else 0)) * 1e6
                ),
                frames=program.stack(BACK),
            )
            for step in range(num_steps)
        ]
        rows = [(160, 100, BACK), (30, 30, "main:step optimizer")]
        told = {"on_cpu_ns": 100 - waiting, "waiting_ns": waiting}
        ranks.append(
            {
                "settings": (Setting(key="cpu.schedule", value=told),),
                "samples": samples(program, rows),
                "flight": FlightRecord(
                    rank=rank, version="2.10", groups={}, entries=tuple(entries)
                ),
                "steps": steps([100.0] * num_steps),
            }
        )
    return ranks


def test_recorders_of_one_host_show_who_takes_turns(program):
    cause = diagnose(program, issued(program, 50)).causes[0]
    assert (cause.category, cause.ranks) == ("load_imbalance", "all")
    assert cause.functions[0].line == program.lines["backward"]


def test_turns_that_a_cpus_jitter_can_make_are_no_imbalance(program):
    assert not diagnose(program, issued(program, 20)).causes
    assert not diagnose(program, issued(program, 50, waiting=15)).causes


def test_waiting_for_a_core_makes_any_rank_late_and_is_no_imbalance(program):
    assert not diagnose(program, issued(program, 50, waiting=40)).causes


def test_on_a_cpu_nobody_can_tell_turns_from_the_scheduler_unless_waiting_was_counted(program):
    ranks = issued(program, 50)
    for rank in ranks:
        del rank["settings"]
    assert not diagnose(program, ranks).causes


def test_simulated_traces_carry_turns_through_reading_and_summarizing(tmp_path):
    from eroica.read.kineto import read_timeline
    from eroica.simulate.traces import write_traces
    from eroica.summarize import summarize

    write_traces(tmp_path, Cluster(8), [Fault("rotating_imbalance", (), 1.6)], steps=8)
    seen = [summarize(read_timeline(p)) for p in sorted(tmp_path.glob("*.gz"))]
    cause = localize_slow(seen).causes[0]
    assert (cause.category, cause.ranks) == ("load_imbalance", "all")

"""More work, or the same work slower: by executions a step and their rate, at the edges."""

import numpy as np
import pytest

from eroica.columns import PatternTable, RankPatterns
from eroica.config import Parameters
from eroica.localize.fleet import localize_table
from eroica.localize.rules.kinds import _compute_kind
from eroica.localize.rules.ports import port_faults
from eroica.localize.rules.view import build_view
from eroica.records import CounterUse, Function, HostEvidence, JobEvidence, RankEvidence

KERNELS = tuple(Function(id=f"k{i}", kind="kernel", name=f"kernel{i}") for i in range(5))
OPS = tuple(Function(id=f"o{i}", kind="op", name=f"aten::op{i}") for i in range(5))


def patterns(rank, functions, *, count=100, each_ns=1000.0, fastest_ns=None, num_steps=10):
    """A rank that ran each function so often; the last one may run at another rate."""
    times = [each_ns] * (len(functions) - 1) + [fastest_ns or each_ns]
    return RankPatterns(
        rank=rank,
        functions=functions,
        beta_F=np.full(len(functions), 0.15, np.float32),
        mu_F=np.full(len(functions), 0.5, np.float32),
        sigma_F=np.zeros(len(functions), np.float32),
        count_F=np.full(len(functions), count, np.int32),
        total_ns_F=(np.array(times) * count).astype(np.int64),
        window_ns=1_000_000,
        num_steps=num_steps,
    )


def kind(functions, **slow):
    """What rank 2 of four does: category and action."""
    ranks = [patterns(r, functions, **(slow if r == 2 else {})) for r in range(4)]
    view = build_view(ranks, None, Parameters())
    return _compute_kind(view, view.rows[0], [2])[:2]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (120, ("straggler_compute", "investigate")),
        (121, ("load_imbalance", "patch")),
        (100, ("straggler_compute", "investigate")),
    ],
)
def test_a_fifth_more_executions_a_step_are_more_work(count, expected):
    assert kind(KERNELS, count=count) == expected
    assert kind(KERNELS, count=2 * count, num_steps=20) == expected


@pytest.mark.parametrize(
    ("each_ns", "expected"),
    [
        (1000 / 0.93, ("straggler_compute", "investigate")),
        (1000 / 0.91, ("gpu_throttled", "drain")),
    ],
)
def test_kernels_that_all_run_at_a_lower_rate_are_the_devices(each_ns, expected):
    assert kind(KERNELS, each_ns=each_ns) == expected


def test_operators_of_a_cpu_at_a_lower_rate_may_be_the_hosts():
    assert kind(OPS, each_ns=1000 / 0.8) == ("straggler_compute", "investigate")


@pytest.mark.parametrize(
    ("fastest_ns", "expected"),
    [
        (1000 / 0.98, ("load_imbalance", "patch")),
        (1000 / 0.96, ("gpu_throttled", "drain")),
    ],
)
def test_one_kernel_at_the_peers_rate_clears_the_device(fastest_ns, expected):
    """Longer inputs make the others slower and leave the optimizer's kernels as they are."""
    assert kind(KERNELS, each_ns=1000 / 0.7, fastest_ns=fastest_ns) == expected


def test_a_few_kernels_clear_nobody():
    assert kind(KERNELS[:3], each_ns=1000 / 0.7) == ("straggler_compute", "investigate")


@pytest.mark.parametrize(("rate", "is_off"), [(0.89, True), (0.91, False)])
def test_a_port_is_lower_from_a_tenth_less_than_the_others_on(rate, is_off):
    def use(mean):
        return CounterUse(mean=mean, low=mean, high=mean)

    hosts = tuple(
        HostEvidence(host=f"h{n}", counters={"ib.mlx5_0.link_bits_per_s": use(part * 4e11)})
        for n, part in enumerate((1.0, rate, 1.0))
    )
    ranks = tuple(RankEvidence(rank=r, host=f"h{r}") for r in range(3))
    seen = JobEvidence(ranks=ranks, world_size=3, hosts=hosts)
    faults = port_faults(build_view([], seen, Parameters()))
    assert [(f.host, f.ranks) for f in faults] == ([("h1", (1,))] if is_off else [])


@pytest.mark.parametrize(("spared", "is_cause"), [(0.16, True), (0.14, False)])
def test_a_rank_of_a_table_holds_the_others_if_it_waits_half_its_excess_less(spared, is_cause):
    beta = np.full((2, 16), 0.5, np.float32)
    beta[1] = 0.4
    beta[0, 3], beta[1, 3] = 0.8, 0.4 - spared
    functions = (
        Function(id="k", kind="kernel", name="gemm"),
        Function(id="c", kind="collective", name="all_reduce"),
    )
    even = np.full((2, 16), 0.5, np.float32)
    table = PatternTable(
        functions=functions,
        ranks_R=np.arange(16),
        beta_FR=beta,
        mu_FR=even,
        sigma_FR=even * 0,
        hosts_R=tuple("h" for _ in range(16)),
        roles_R=(),
    )
    causes = localize_table(table).causes
    assert [(c.category, c.ranks) for c in causes] == (
        [("load_imbalance", (3,))] if is_cause else []
    )

"""D and Delta: exact numbers, the traps, and the streamed table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.columns import PatternTable
from eroica.config import Parameters
from eroica.errors import InputError
from eroica.localize.arrival import arrival_table, is_point_to_point, late_ranks
from eroica.localize.counterfactual import slowest, without
from eroica.localize.distance import (
    Block,
    blocks_of,
    distances,
    expected_distance,
    limit_of,
)
from eroica.localize.far import count_far, plain_count_far
from eroica.localize.roles import is_stage_group
from eroica.localize.scan import scan
from eroica.localize.table_file import is_table_file, open_table, write_table
from eroica.records import Function
from tests.make_patterns import make_patterns

PARAMETERS = Parameters()


def block(beta, mu=None, sigma=None, kind="kernel"):
    beta = np.asarray(beta, np.float32)
    given = [
        np.full(len(beta), 0.5, np.float32) if v is None else np.asarray(v, np.float32)
        for v in (mu, sigma)
    ]
    return Block(Function(id=kind, kind=kind, name=kind), beta, *given)


def found(*blocks, **more):
    return list(distances(blocks, **more))


def test_the_worked_example_one_of_eight():
    (one,) = found(block([0.5] + [0.1] * 7))
    assert one.positions_A.tolist() == [0]
    assert one.delta_A.tolist() == [pytest.approx(7 / 8)]
    assert one.threshold_A.tolist() == [pytest.approx(0.5)]
    assert one.peers[0] == pytest.approx((0.1, 0.5, 0.5))


def test_of_two_halves_that_differ_neither_is_abnormal():
    """Each rank is far from exactly half of the sample: the floor has to be exceeded."""
    assert found(block([0.5] * 4 + [0.1] * 4)) == []


def test_equal_ranks_differ_from_nobody():
    assert found(block([0.3] * 50)) == []


def test_a_healthy_rank_is_not_abnormal_because_the_sample_holds_the_faulty_one():
    beta = np.full(2000, 0.2)
    beta[7] = 0.9
    (one,) = found(block(beta))
    assert one.positions_A.tolist() == [7]


def test_below_the_lower_bound_of_beta_nothing_is_found():
    assert found(block([0.009] + [0.001] * 20)) == []


def test_absent_is_zero_and_the_one_that_has_it_is_found():
    zeros = np.zeros(16)
    lone = zeros.copy()
    lone[3] = 0.4
    (one,) = found(block(lone, mu=lone, sigma=zeros, kind="python"))
    assert one.positions_A.tolist() == [3]


def test_stages_are_compared_with_their_own_kind_only():
    beta = np.r_[np.full(8, 0.1), np.full(8, 0.6)]
    roles = np.r_[np.zeros(8), np.ones(8)].astype(np.int32)
    assert found(block(beta), roles_R=roles) == []
    beta[3] = 0.6
    (one,) = found(block(beta), roles_R=roles)
    assert one.positions_A.tolist() == [3]


def test_expected_ranges_by_kind():
    assert expected_distance(0.05, "python", PARAMETERS) == pytest.approx(0.04)
    assert expected_distance(0.35, "collective", PARAMETERS) == pytest.approx(0.05)
    assert expected_distance(0.99, "kernel", PARAMETERS) == 0.0


def test_python_over_its_range_on_all_ranks_is_counted_not_listed():
    (one,) = found(block([0.05] * 30, kind="python"))
    assert (one.num_unexpected, len(one.positions_A)) == (30, 0)
    assert one.max_expected_distance == pytest.approx(0.04)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.02, 0.2, 0.5]),
)
def test_the_bounds_give_the_same_counts_as_computing_all(count, seed, spread):
    random = np.random.default_rng(seed)
    columns = [np.clip(random.normal(0.5, spread, count), 0, 1) for _ in range(3)]
    columns = tuple(c.astype(np.float32) for c in columns)
    reference = np.stack([c[: max(1, count // 2)] for c in columns]).astype(np.float32)
    fast = count_far(columns, reference, 0.4)
    # Distances that are 0.4 but for rounding may fall on either side.
    low = plain_count_far(columns, reference, 0.4 + 1e-5)
    high = plain_count_far(columns, reference, 0.4 - 1e-5)
    assert (low <= fast).all() and (fast <= high).all()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_the_limit_is_median_plus_five_mad_with_a_floor(counts):
    values = np.array(counts, np.int32)
    median = np.median(values)
    mad = np.median(np.abs(values - median))
    assert limit_of(values, 40, PARAMETERS) == pytest.approx(max((median + 5 * mad) / 40, 0.5))


def test_a_scan_sums_the_time_of_each_rank_by_kind():
    result = scan([block([0.2, 0.3]), block([0.5, 0.1], kind="collective")])
    assert result.wait_R == pytest.approx([0.5, 0.1])
    assert result.work_R == pytest.approx([0.2, 0.3])


def table():
    random = np.random.default_rng(3)
    shape = (5, 40)
    numbers = [random.random(shape).astype(np.float32) for _ in range(3)]
    return PatternTable(
        functions=tuple(Function(id=f"f{i}", kind="kernel", name=f"f{i}") for i in range(5)),
        ranks_R=np.arange(100, 140),
        beta_FR=numbers[0],
        mu_FR=numbers[1],
        sigma_FR=numbers[2],
        hosts_R=tuple(f"h{i // 8}" for i in range(40)),
        roles_R=tuple("ab"[i % 2] for i in range(40)),
    )


def write_pattern_table(path, table):
    roles = np.array(["ab".index(role) for role in table.roles_R], np.int32)
    write_table(
        path,
        table.functions,
        blocks_of(table),
        ranks_R=table.ranks_R,
        roles_R=roles,
        hosts_R=table.hosts_R,
    )


def test_a_table_comes_back_from_disk_within_its_resolution(tmp_path):
    before, path = table(), tmp_path / "t.parquet"
    write_pattern_table(path, before)
    assert is_table_file(path)
    after = open_table(path)
    assert after.ranks_R.tolist() == before.ranks_R.tolist()
    assert [after.host_names[i] for i in after.host_ids_R] == list(before.hosts_R)
    assert after.roles_R.tolist() == [i % 2 for i in range(40)]
    for one, other in zip(after.blocks(), blocks_of(before), strict=True):
        assert one.function == other.function
        assert one.beta_R == pytest.approx(other.beta_R, abs=3e-4)


def test_a_table_on_disk_gives_the_same_ranks_as_in_memory(tmp_path):
    before, path = table(), tmp_path / "t.parquet"
    write_pattern_table(path, before)
    on_disk = found(*open_table(path).blocks())
    in_memory = found(*blocks_of(before))
    assert [f.positions_A.tolist() for f in on_disk] == [f.positions_A.tolist() for f in in_memory]


def test_a_table_that_another_program_packed_is_read_as_well(tmp_path):
    import pyarrow.parquet as pq

    path, packed = tmp_path / "t.parquet", tmp_path / "packed.parquet"
    write_pattern_table(path, table())
    with (
        pq.ParquetFile(path) as file,
        pq.ParquetWriter(packed, file.schema_arrow, compression="snappy") as writer,
    ):
        for number in range(file.num_row_groups):
            writer.write_table(file.read_row_group(number))
    for one, other in zip(open_table(packed).blocks(), open_table(path).blocks(), strict=True):
        assert one.beta_R.tolist() == other.beta_R.tolist()
        assert one.sigma_R.tolist() == other.sigma_R.tolist()


def test_other_programs_see_the_numbers_of_a_table(tmp_path):
    import pyarrow.parquet as pq

    before, path = table(), tmp_path / "t.parquet"
    write_pattern_table(path, before)
    columns = pq.read_table(path)
    assert columns["mu"].to_numpy()[:40] == pytest.approx(before.mu_FR[0], abs=3e-4)


def test_numbers_of_a_table_are_views_of_the_file(tmp_path):
    path = tmp_path / "t.parquet"
    write_pattern_table(path, table())
    blocks = list(open_table(path).blocks())
    assert all(not b.beta_R.flags.owndata and b.beta_R.dtype == np.float16 for b in blocks)


def test_a_function_too_small_for_any_rule_is_not_looked_at_beyond_its_beta():
    class Unread:
        def __array__(self, *_, **__):
            raise AssertionError("mu and sigma of a small function were read")

    small = Function(id="s", kind="python", name="s")
    result = scan([Block(small, np.full(20, 0.009, np.float32), Unread(), Unread())])
    assert result.levels == [{0: pytest.approx(0.009)}]


def test_other_files_are_refused_by_name(tmp_path):
    other = tmp_path / "other.parquet"
    other.write_bytes(b"PAR1 and nothing more")
    assert not is_table_file(other)
    with pytest.raises(InputError, match=r"other\.parquet"):
        open_table(other)


def test_a_table_cut_short_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    write_pattern_table(path, table())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be read"):
        open_table(path)


# --- arrival, counterfactual, roles -----------------------------------------------------------


def test_lateness_needs_no_common_clock():
    patterns = make_patterns(4, {2}, collectives=10)
    arrivals = arrival_table(patterns)
    (late,) = late_ranks(arrivals)
    assert (late.rank, late.times_last, late.out_of) == (2, 10, 10)
    assert late.held_ns == pytest.approx(10 * 134e6, rel=0.05)


def test_sends_of_a_pipeline_are_not_arrivals():
    assert is_point_to_point("pp|send_recv|3")
    assert not is_point_to_point("send_group|all_reduce|3")


def test_the_counterfactual_is_what_the_next_slowest_leaves():
    found_ = slowest(np.array([0.40, 0.38, 1.00, 0.41]))
    assert (found_.positions, found_.share) == ((2,), pytest.approx(0.59))
    assert found_.excess == pytest.approx(0.60)
    two = slowest(np.array([0.40, 0.38, 1.00, 0.90, 0.41]))
    assert (two.positions, two.share) == ((2, 3), pytest.approx(0.49))
    assert two.excess == pytest.approx(0.55)
    assert without(np.array([0.4, 1.0]), (1,), np.array([0.0, 0.7])) == pytest.approx(0.6)


def test_no_minority_no_straggler():
    assert slowest(np.array([0.5, 0.5, 0.5])) is None
    assert slowest(np.array([1.0, 1.0, 0.4])) is None


def test_a_group_of_stages_is_told_by_its_words():
    assert is_stage_group("pp_0")
    assert is_stage_group("7", "PIPELINE_MODEL_PARALLEL_GROUP".replace("_MODEL", ""))
    assert not is_stage_group("dp_mapping")

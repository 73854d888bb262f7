"""Pictures: the right numbers in them and in their words, and no trouble with odd data."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from make_patterns import make_patterns

from eroica.records import Breakdown, RankRow, StepTimes
from eroica.report import canvas
from eroica.report.draw_ranks import draw_breakdown, draw_heatmap, draw_pattern, pattern_rows
from eroica.report.draw_time import draw_arrivals, draw_steps, lateness
from eroica.report.draw_waiting import draw_waiting, waiting_edges, waiting_nodes
from eroica.report.material import load
from eroica.report.pictures import draw


@pytest.fixture
def slow(saved_incident):
    return load(saved_incident("slow"))


@pytest.fixture
def stuck(saved_incident):
    return load(saved_incident("stuck"))


def with_ranks(material, ranks, **more):
    cause = msgspec.structs.replace(material.incident.causes[0], ranks=ranks)
    incident = msgspec.structs.replace(material.incident, causes=(cause,), **more)
    return replace(material, incident=incident)


# --- blocks of ranks ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 119, 120, 121, 1000, 10_000])
@pytest.mark.parametrize("odd", [(), (0,), (5, 6, 7), (9_999,), tuple(range(500))])
def test_every_rank_is_in_one_column_and_the_odd_ones_alone(count, odd):
    ranks = np.arange(count)
    groups = canvas.blocks(ranks, odd)
    members = np.concatenate([members for _, members in groups])
    assert sorted(members.tolist()) == list(range(count))
    assert len(groups) <= canvas.MAX_COLUMNS + 24
    alone = {label for label, members in groups if len(members) == 1}
    assert {str(rank) for rank in odd[:12] if rank < count} <= alone


def test_neighbors_share_a_label():
    assert canvas.folded([3, 4, 5, 9], [30, 40, 50, 90]) == [("3-5", 40), ("9", 90)]
    assert canvas.folded([], []) == []


def test_ids_of_two_pictures_never_meet(slow):
    material = replace(with_ranks(slow, (2,)), patterns=make_patterns(8, (2,)))
    ids = [set(canvas.re.findall(r'\bid="([^"]+)"', picture.svg)) for picture in draw(material)]
    assert len(ids) >= 4
    assert sum(map(len, ids)) == len(set.union(*ids))
    for picture in draw(material):
        own = set(canvas.re.findall(r'\bid="([^"]+)"', picture.svg))
        used = canvas.re.findall(r'(?:url\(#|href="#)([^")]+)', picture.svg)
        assert set(used) <= own


def test_a_name_is_drawn_as_text_and_never_as_a_formula(slow):
    patterns = make_patterns(8, (2,))
    bad = r"$\frac{1}{0}$ <b>&\x1b " + "n" * 200
    renamed = tuple(
        replace(
            one,
            functions=tuple(msgspec.structs.replace(f, name=bad, file=None) for f in one.functions),
        )
        for one in patterns
    )
    picture = draw_heatmap(replace(with_ranks(slow, (2,)), patterns=renamed))
    assert r"$\frac{1}{0}$ &lt;b&gt;" in picture.svg
    assert "<b>" not in picture.svg


# --- what they say --------------------------------------------------------------------------


def test_lateness_comes_from_ends_that_are_the_same():
    patterns = make_patterns(4, (2,))
    ranks, late = lateness(type("M", (), {"patterns": patterns})())
    assert ranks.tolist() == [0, 1, 2, 3]
    stays = np.array([one.arrivals.end_ns_C - one.arrivals.start_ns_C for one in patterns])
    assert np.allclose(late, (stays.max(axis=0) - stays) / 1e6)
    assert late[2].min() > 130 and late[[0, 1, 3]].max() < 10


def test_the_words_of_the_steps_are_their_numbers(stuck):
    picture = draw_steps(stuck)
    assert picture.alt == "20 steps of 4 ranks: median 9.619 ms, longest 9.88 ms."


def test_the_breakdown_says_guilty_and_others(slow):
    alt = draw_breakdown(slow).alt
    assert alt.startswith("rank 2: compute 55 %, exposed communication 1 %, data 43 %")
    assert "The others: compute 55 %, exposed communication 40 %, data 2 %" in alt


def test_everyone_waits_for_the_odd_one_and_it_waits_back(stuck):
    nodes = waiting_nodes(stuck.incident)
    assert [(node.ranks, node.is_guilty) for node in nodes] == [((0,), True), ((1, 2, 3), False)]
    assert set(waiting_edges(stuck.incident, nodes)) == {(1, 0), (0, 1)}


def test_a_rank_that_is_gone_is_waited_for_and_does_not_wait(stuck):
    cause = msgspec.structs.replace(
        stuck.incident.causes[0], category="rank_exited", ranks=(7,), victims=(0, 1, 2, 3)
    )
    incident = msgspec.structs.replace(stuck.incident, causes=(cause,))
    nodes = waiting_nodes(incident)
    assert nodes[0].ranks == (7,) and nodes[0].lines == ("ended",)
    assert {end for _, end in waiting_edges(incident, nodes)} == {0}
    picture = draw_waiting(replace(stuck, incident=incident))
    assert "ranks 1-3 wait for rank 7" in picture.alt


def test_many_places_are_folded(stuck):
    rows = tuple(RankRow(ranks=(n,), place=f"train.py:{n}") for n in range(40))
    nodes = waiting_nodes(msgspec.structs.replace(stuck.incident, ranks_table=rows))
    assert len(nodes) == 6 and nodes[-1].lines == ("35 other places",)


# --- odd data -------------------------------------------------------------------------------


def test_without_data_there_is_no_picture(saved_incident):
    for name in ("hardware", "missing"):
        assert draw(load(saved_incident(name))) == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_few_ranks_are_no_trouble(slow, world_size):
    material = replace(with_ranks(slow, (0,)), patterns=make_patterns(world_size, (0,)))
    assert {picture.id for picture in draw(material)} >= {"breakdown"}


def test_zero_patterns_and_no_functions_are_no_trouble(slow):
    patterns = make_patterns(4, ())
    empty = np.zeros(0, np.float32)
    none = tuple(
        replace(one, functions=(), beta_F=empty, mu_F=empty, sigma_F=empty,
                count_F=empty.astype(np.int32), total_ns_F=empty.astype(np.int64))
        for one in patterns
    )  # fmt: skip
    zero = tuple(
        replace(one, beta_F=one.beta_F * 0, mu_F=one.mu_F * 0, sigma_F=one.sigma_F * 0)
        for one in patterns
    )
    assert pattern_rows(none) is None
    assert draw_heatmap(replace(slow, patterns=none)) is None
    assert draw_pattern(replace(slow, patterns=zero)) is not None
    draw(replace(slow, patterns=zero))


def test_ranks_without_a_common_collective_have_no_lateness(slow):
    one, other = make_patterns(2, ())
    keys = tuple(f"other|{n}" for n in range(40))
    other = replace(other, arrivals=replace(other.arrivals, key_C=keys))
    assert draw_arrivals(replace(slow, patterns=(one, other))) is None


def test_steps_that_start_at_different_numbers_are_lined_up(stuck):
    ranks = list(stuck.evidence.ranks)
    late = StepTimes(start_ns=(10, 20, 30), duration_ns=(5, 5, 500), first_step=15)
    ranks[1] = msgspec.structs.replace(ranks[1], steps=late)
    ranks[2] = msgspec.structs.replace(ranks[2], steps=None)
    evidence = msgspec.structs.replace(stuck.evidence, ranks=tuple(ranks))
    assert draw_steps(replace(stuck, evidence=evidence)).alt.startswith("20 steps of 3 ranks")


def test_ten_thousand_steps_keep_their_longest(stuck):
    lengths = [1_000_000] * 10_000
    lengths[7777] = 90_000_000
    steps = StepTimes(
        start_ns=tuple(n * 1_000_000 for n in range(10_000)), duration_ns=tuple(lengths)
    )
    ranks = tuple(msgspec.structs.replace(rank, steps=steps) for rank in stuck.evidence.ranks)
    evidence = msgspec.structs.replace(stuck.evidence, ranks=ranks)
    picture = draw_steps(replace(stuck, evidence=evidence))
    assert picture.alt.endswith("median 1 ms, longest 90 ms.")
    assert len(picture.svg) < 100_000


def test_ten_thousand_ranks_stay_small(slow):
    rows = tuple(Breakdown(rank=n, compute=0.6, data=0.4) for n in range(10_000))
    material = with_ranks(slow, (4242,), breakdown=rows)
    picture = draw_breakdown(material)
    assert ">4242<" in picture.svg
    assert len(picture.svg) < 200_000


def test_of_a_large_table_the_report_draws_what_findings_name(tmp_path, monkeypatch):
    from eroica import pipeline
    from eroica.localize.table_file import open_table, write_table
    from eroica.report import html
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import Simulation

    monkeypatch.setenv("EROICA_HOME", str(tmp_path / "home"))
    jobs = Cluster(64)
    job = Simulation(jobs, [Fault("slow_nic", (37,), 0.15)], seed=7)
    path = tmp_path / "cluster.parquet"
    write_table(
        path,
        [planned.function for planned in job.planned],
        job.blocks(),
        ranks_R=np.arange(64),
        roles_R=jobs.stage_R.astype(np.int32),
        hosts_R=jobs.hosts(),
    )
    folder = pipeline.diagnose_paths([path])
    incident = folder.read_incident()
    assert incident.causes[0].ranks == (37,)
    kept = load(folder).patterns
    assert [one.rank for one in kept] == list(range(64))
    named = {finding.function.id for finding in incident.findings if finding.function}
    assert {function.id for function in kept[0].functions} <= named
    whole = {block.function.id: block for block in open_table(path).blocks()}
    for n, function in enumerate(kept[37].functions):
        assert kept[37].beta_F[n] == pytest.approx(float(whole[function.id].beta_R[37]), abs=1e-3)
    page = html.render(folder)
    assert 'id="heatmap"' in page and "on rank 37 is" in page

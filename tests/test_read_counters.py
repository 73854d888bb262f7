"""Hardware samples in a folder become what each counter did, with its rank or host."""

import pytest

from eroica.read.folder import find_inputs, load_evidence
from eroica.read.hardware import header, row


def write(path, names, rows, **whose):
    lines = [header(names, **whose), *(row(t * 1_000_000_000, values) for t, values in rows)]
    path.write_text("".join(lines))


def evidence_of(folder):
    return load_evidence(find_inputs([folder]))


def test_samples_of_a_rank_are_kept_with_it(tmp_path):
    names = ("gpu0.sm_clock_hz", "gpu0.ecc_uncorrected_errors")
    rows = [(1_790_000_000 + t, (1.7e9 - t * 1e8, 5 + t)) for t in range(3)]
    write(tmp_path / "hardware.jsonl", names, rows, rank=3, host="node7")
    (rank,) = evidence_of(tmp_path).ranks
    assert (rank.rank, rank.host) == (3, "node7")
    clock, errors = (rank.counters[name] for name in names)
    assert (clock.mean, clock.low, clock.high) == pytest.approx((1.6e9, 1.5e9, 1.7e9))
    assert (clock.increase, errors.increase, errors.seconds) == (None, 2.0, 2.0)


def test_samples_of_a_host_are_kept_with_the_host(tmp_path):
    rows = [(1_790_000_000, (0.2,)), (1_790_000_001, (0.4,))]
    write(tmp_path / "hardware.jsonl", ("pressure.memory",), rows, host="node7")
    found = evidence_of(tmp_path)
    assert not found.ranks
    assert found.hosts[0].host == "node7"
    assert found.hosts[0].counters["pressure.memory"].mean == pytest.approx(0.3)


def test_a_counter_that_fell_was_reset_and_did_not_rise(tmp_path):
    rows = [(1_790_000_000, (9,)), (1_790_000_001, (0,))]
    write(tmp_path / "hardware.jsonl", ("gpu0.link_replays",), rows, rank=0)
    (rank,) = evidence_of(tmp_path).ranks
    assert rank.counters["gpu0.link_replays"].increase == 0


def test_a_file_without_samples_is_a_warning_that_names_it(tmp_path):
    (tmp_path / "hardware.jsonl").write_text(header(("a.b",), rank=0))
    found = evidence_of(tmp_path)
    assert not found.ranks
    assert any("hardware.jsonl" in (w.file or "") for w in found.warnings)

"""Hardware samples: eroica's JSONL, CSV of others, npz."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.hardware import header, read_hardware, row

NAMES = ["gpu0.sm_activity", "nic.mlx5_0.tx_bytes_per_s"]
T0 = 1_795_958_704_532_322_472


def test_what_is_written_is_read_again_exactly(tmp_path):
    path = tmp_path / "hardware.jsonl"
    lines = [header(NAMES, host="n7", rank=3), row(T0 + 100, [0.5, None]), row(T0, [0.25, 2e9])]
    path.write_text("".join(lines))
    samples = read_hardware(path)
    assert (samples.host, samples.rank) == ("n7", 3)
    assert samples.time_ns_N.tolist() == [T0, T0 + 100]
    assert samples.values_N["gpu0.sm_activity"].tolist() == [0.25, 0.5]
    assert math.isnan(samples.values_N["nic.mlx5_0.tx_bytes_per_s"][1])


def test_a_line_cut_off_is_left_out(tmp_path):
    path = tmp_path / "hardware_rank2.jsonl"
    path.write_text(header(NAMES) + row(T0, [1.0, 2.0]) + row(T0 + 1, [1.0, 2.0])[:20])
    samples = read_hardware(path)
    assert samples.time_ns_N.tolist() == [T0] and samples.rank == 2


def test_csv_of_nvidia_smi_is_read_with_its_units(tmp_path):
    path = tmp_path / "smi.csv"
    path.write_text(
        "timestamp, utilization.gpu [%], memory.used [MiB], clocks.sm [MHz]\n"
        "2026/11/29 13:00:00.250, 35 %, 2048 MiB, 1410 MHz\n"
        "2026/11/29 13:00:00.350, [N/A], 2048 MiB, 1410 MHz\n"
    )
    samples = read_hardware(path)
    assert samples.time_ns_N.tolist() == [1_795_957_200_250_000_000, 1_795_957_200_350_000_000]
    assert samples.values_N["utilization.gpu"][0] == pytest.approx(0.35)
    assert math.isnan(samples.values_N["utilization.gpu"][1])
    assert samples.values_N["memory.used"][0] == 2048 * (1 << 20)


@pytest.mark.parametrize(
    ("title", "cell", "time_ns"),
    [
        ("time_ns", "1795958704532322472", T0),
        ("time_s", "1795958704.532322472", T0),
        ("timestamp", "2026-11-29T14:00:00+01:00", 1_795_957_200_000_000_000),
    ],
)
def test_times_are_exact_in_every_form(tmp_path, title, cell, time_ns):
    path = tmp_path / "x.csv"
    path.write_text(f"{title},a\n{cell},1.5\n")
    assert read_hardware(path).time_ns_N.tolist() == [time_ns]


def test_npz_is_read_and_pickled_objects_in_it_are_not(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, time_ns=np.array([T0 + 5, T0]), a=np.array([1.0, 2.0]), other=np.zeros(7))
    samples = read_hardware(path)
    assert samples.time_ns_N.tolist() == [T0, T0 + 5]
    assert {name: list(v) for name, v in samples.values_N.items()} == {"a": [2.0, 1.0]}
    np.savez(path, time_ns=np.array([{"a": 1}], dtype=object), a=np.zeros(1))
    with pytest.raises(InputError):
        read_hardware(path)


@pytest.mark.parametrize(
    "content", [b"", b"time_ns,a\n", b"time_ns,a\nx,y\n", b"{}", b"PK\x03\x04junk", b"{\n[1]\n"]
)
def test_what_holds_no_samples_is_refused(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_hardware(path)


@given(st.binary(max_size=120), st.sampled_from([b"", b"time_ns,a\n", header(NAMES).encode()]))
def test_any_bytes_end_in_samples_or_an_input_error(tmp_path_factory, raw, head):
    path = tmp_path_factory.mktemp("hw") / "x.csv"
    path.write_bytes(head + raw)
    try:
        samples = read_hardware(path)
    except InputError:
        return
    assert all(len(v) == len(samples.time_ns_N) for v in samples.values_N.values())

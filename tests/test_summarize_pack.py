"""Packing: exact both ways, within its bytes, and safe against bytes that are not ours."""

import contextlib
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from make_timeline import make_timeline

from eroica.columns import Arrivals, RankPatterns
from eroica.errors import InputError
from eroica.records import Function, Place, Setting, Warning
from eroica.summarize import (
    merge,
    pack,
    packing,
    read_parquet,
    read_patterns,
    summarize,
    unpack,
    write_parquet,
)
from eroica.summarize.pack_arrivals import pack_arrivals, unpack_arrivals


def same(one, other):
    """Assert that two records of columns hold the same, array by array."""
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert left.tolist() == right.tolist(), field.name
        elif isinstance(left, Arrivals):
            same(left, right)
        else:
            assert left == right, field.name


def make_patterns(rank=0, num_functions=3, num_collectives=4):
    rng = np.random.default_rng(rank)
    stack = tuple(Place(name=f"f{i}", file=f"a{i}.py", line=i or None) for i in range(5))
    functions = tuple(
        Function(
            id=f"{i:016x}",
            kind="python",
            name=f"name{i}",
            file=None if i % 2 else "a.py",
            line=None if i % 2 else i,
            group="dp" if i == 1 else None,
            stack=stack[: i % 6],
            module="nn.Module: Linear_0" if i == 2 else "",
        )
        for i in range(num_functions)
    )
    beta = rng.random(num_functions).astype(np.float32)
    start = np.cumsum(rng.integers(-5, 10**9, num_collectives))
    return RankPatterns(
        rank=rank,
        functions=functions,
        beta_F=np.sort(beta / max(beta.sum(), 1))[::-1].copy(),
        mu_F=rng.random(num_functions).astype(np.float32),
        sigma_F=rng.random(num_functions).astype(np.float32),
        count_F=rng.integers(0, 2**29, num_functions).astype(np.int32),
        total_ns_F=rng.integers(0, 2**60, num_functions),
        window_ns=20_000_000_000,
        num_steps=12,
        host="gpu-007",
        proxy="kernel: x",
        breakdown={"compute": 0.25, "idle": 0.75},
        arrivals=Arrivals(
            key_C=tuple(f"dp|all_reduce|{i * 3}" for i in range(num_collectives)),
            start_ns_C=start,
            end_ns_C=start + 7,
            num_bytes_C=np.full(num_collectives, -1),
            culprit_C=tuple(functions[i % 3].id if i else "" for i in range(num_collectives)),
        ),
        settings=(Setting(key="gc", value={"enabled": True}, places=stack[:1]),),
        warnings=(Warning(file="x", what="y"),),
        reference_F=rng.random(num_functions).astype(np.float32),
        groups={"dp": (0, 1)},
        source="r.json",
    )


@pytest.mark.parametrize("num_functions", [0, 1, 3, 40])
def test_packed_patterns_come_back_exactly(num_functions):
    patterns = make_patterns(num_functions=max(num_functions, 3))
    if num_functions == 0:
        patterns = summarize(make_timeline([]))
    same(unpack(pack(patterns)), patterns)


def test_optional_parts_may_be_missing():
    patterns = replace(make_patterns(), arrivals=None, reference_F=None, num_steps=None)
    same(unpack(pack(patterns)), patterns)


times = st.integers(-(2**61), 2**61)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a|b", "|barrier", "x|y|z"]), st.integers(0, 2**40), times),
        max_size=20,
    )
)
def test_packed_arrivals_come_back_exactly(rows):
    start = np.array([row[2] for row in rows], np.int64)
    arrivals = Arrivals(
        key_C=tuple(f"{row[0]}|{row[1]}" for row in rows),
        start_ns_C=start,
        end_ns_C=start + 5,
        num_bytes_C=start[::-1].copy(),
        culprit_C=tuple(row[0] for row in rows),
    )
    same(unpack_arrivals(pack_arrivals(arrivals)), arrivals)


def test_a_rank_with_everything_in_plenty_still_fits_and_says_what_it_dropped():
    crowded = make_patterns(num_functions=3000, num_collectives=20_000)
    packed = pack(crowded)
    assert len(packed) <= 30_000
    got = unpack(packed)
    assert got.functions[-1].id == "rest"
    assert float(got.beta_F.sum()) == pytest.approx(float(crowded.beta_F.sum()), abs=1e-4)
    assert got.arrivals.key_C == crowded.arrivals.key_C[-len(got.arrivals.key_C) :]
    ids = {function.id for function in got.functions} | {""}
    assert set(got.arrivals.culprit_C) <= ids
    said = " ".join(warning.what for warning in got.warnings)
    assert "collectives kept" in said and "functions below" in said


@pytest.mark.parametrize(
    "data",
    [b"", b"no zstd", pack(make_patterns())[:-20], b"\x28\xb5\x2f\xfd" + bytes(40)],
    ids=["empty", "text", "truncated", "garbage"],
)
def test_bytes_that_are_no_patterns_are_refused(data):
    with pytest.raises(InputError, match="cannot be read"):
        unpack(data)


def test_flipped_bytes_end_in_patterns_or_a_clear_error():
    data = pack(make_patterns())
    for position in range(0, len(data), 7):
        broken = bytearray(data)
        broken[position] ^= 0x55
        with contextlib.suppress(InputError):
            unpack(bytes(broken))


def test_parquet_gives_back_what_was_written(tmp_path):
    ranks = [make_patterns(rank, num_functions=3 + rank) for rank in (5, 0, 2)]
    ranks.append(replace(summarize(make_timeline([], rank=9)), reference_F=None))
    write_parquet(tmp_path / "patterns.parquet", ranks)
    again = read_parquet(tmp_path / "patterns.parquet")
    assert len(again) == len(ranks)
    for one, other in zip(again, ranks, strict=True):
        same(one, other)
    assert not list(tmp_path.glob("*.part"))


def test_a_parquet_of_nobody_holds_nobody(tmp_path):
    write_parquet(tmp_path / "p.parquet", [])
    assert read_parquet(tmp_path / "p.parquet") == []


def test_other_tools_read_the_numbers_as_columns(tmp_path):
    import pyarrow.parquet as pq

    write_parquet(tmp_path / "p.parquet", [make_patterns(0), make_patterns(1)])
    rows = pq.read_table(tmp_path / "p.parquet", columns=["function", "rank", "beta"])
    rows = rows.filter(rows["beta"].is_valid()).to_pydict()
    assert rows["function"] == [0, 0, 1, 1, 2, 2]  # function-major
    assert rows["rank"] == [0, 1] * 3


def test_a_foreign_or_broken_parquet_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(InputError, match="no patterns of eroica"):
        read_parquet(path)
    write_parquet(path, [make_patterns()])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        read_parquet(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_parquet(tmp_path / "absent.parquet")


def test_read_patterns_tells_the_two_forms_apart(tmp_path):
    one = make_patterns(4)
    write_parquet(tmp_path / "a", [one])
    (tmp_path / "b").write_bytes(pack(one))
    (tmp_path / "c").write_bytes(b"neither")
    same(read_patterns(tmp_path / "a")[0], one)
    same(read_patterns(tmp_path / "b")[0], one)
    with pytest.raises(InputError, match="holds no patterns"):
        read_patterns(tmp_path / "c")
    with pytest.raises(InputError, match="cannot be read"):
        read_patterns(tmp_path / "d")


def test_merging_is_function_major_by_rank_and_zero_where_absent():
    def job(rank, *names):
        events = [("kernel", name, "stream7", 10 * i, 10) for i, name in enumerate(names)]
        return summarize(make_timeline(events, rank=rank, window=(0, 20), host=f"h{rank}"))

    table = merge([job(3, "k", "only"), job(1, "k")])
    assert table.ranks_R.tolist() == [1, 3]
    assert table.hosts_R == ("h1", "h3")
    by_name = {f.name: row for row, f in enumerate(table.functions)}
    assert table.beta_FR[by_name["k"]].tolist() == [0.5, 0.5]
    assert table.beta_FR[by_name["only"]].tolist() == [0.0, 0.5]
    assert table.count_FR[by_name["only"]].tolist() == [0, 1]
    assert table.window_ns_R.tolist() == [20, 20]
    assert table.num_steps_R.tolist() == [-1, -1]


def test_of_two_windows_of_a_rank_the_later_counts():
    first = summarize(make_timeline([("kernel", "k", "stream7", 0, 5)], window=(0, 10)))
    second = summarize(make_timeline([("kernel", "k", "stream7", 0, 8)], window=(0, 10)))
    assert merge([first, second]).beta_FR.tolist() == [[pytest.approx(0.8)]]


def test_merging_nobody_gives_an_empty_table():
    assert merge([]).beta_FR.shape == (0, 0)


def changed(**columns):
    """The bytes of a rank in which some fields were written by somebody else."""
    data = zstandard.ZstdDecompressor().decompress(pack(make_patterns()))
    packed = msgspec.structs.replace(packing._decoder.decode(data), **columns)
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(packed))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"reference": b"\0" * 4}, "different number"),
        ({"beta": b"\xff" * 12}, "no number"),
        ({"frames": [(i - 1, 0, -1, -1) for i in range(8000)]}, "deeper than any"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(columns, said):
    assert unpack(changed()).rank == 0
    with pytest.raises(InputError, match=said):
        unpack(changed(**columns))


@pytest.mark.parametrize("culprit", [b"\0" * 8, b"\0" * 80])
def test_culprits_of_another_number_than_collectives_are_refused(culprit):
    packed = pack_arrivals(make_patterns().arrivals)
    packed.culprit = culprit
    with pytest.raises(ValueError, match="different length"):
        unpack_arrivals(packed)


def test_bytes_that_would_unpack_to_more_than_a_rank_has_are_not_unpacked():
    honest = zstandard.ZstdCompressor().compress(b"\0" * (65 << 20))
    with pytest.raises(InputError, match="68157440 bytes unpacked"):
        unpack(honest)
    # A frame header may claim any size: magic number, 8 bytes of content size, no content.
    with pytest.raises(InputError, match="bytes unpacked"):
        unpack(b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\x01\0\0")


@pytest.mark.parametrize("dropped", ["rank", "record", "beta"])
def test_a_parquet_of_ours_that_lacks_a_column_is_refused(tmp_path, dropped):
    import pyarrow.parquet as pq

    path = tmp_path / "p.parquet"
    write_parquet(path, [make_patterns()])
    pq.write_table(pq.read_table(path).drop_columns([dropped]), path)
    with pytest.raises(InputError, match="cannot be read"):
        read_parquet(path)


def test_writing_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        write_parquet(tmp_path / "p.parquet", [make_patterns()])
    assert not list(tmp_path.iterdir())

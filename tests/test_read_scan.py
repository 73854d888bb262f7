"""The compiled scanner against the json module: same events whatever the layout and the split."""

import json
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.read import scan
from eroica.read.json_strings import decode_string
from eroica.read.kineto_columns import EventColumns

MAX_INT64 = 2**63 - 1


def scan_in_pieces(data: bytes, sizes: list[int]) -> tuple[EventColumns, int]:
    """Scan an array of events (after its bracket) through buffers that grow by ``sizes`` bytes."""
    events = EventColumns()
    events.begin_array()
    at, end, step, status = 0, 0, 0, scan.NEED_MORE
    while status == scan.NEED_MORE and end < len(data):
        base = at
        end = min(len(data), end + sizes[step % len(sizes)])
        step += 1
        buffer = np.frombuffer(data[base:end], np.uint8)
        status, used = events.scan(buffer, 0, len(buffer), base)
        at = base + used
    return events, status


def exact_ns(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_UP))


def expected_events(text: str) -> list[tuple]:
    """What the json module makes of the same array."""
    wanted = []
    for event in json.loads(text, parse_float=Decimal, parse_int=Decimal):
        if event.get("ph") != "X":
            continue
        args = event.get("args", {})
        wanted.append(
            (
                exact_ns(str(event["ts"])),
                exact_ns(str(event["dur"])),
                event.get("name", ""),
                event.get("cat", ""),
                (str(event.get("pid", "")), str(event.get("tid", ""))),
                int(args.get("Python id", -1)),
                int(args.get("Python parent id") or -1),
                int(args.get("correlation", -1)),
            )
        )
    return wanted


def scanned_events(events: EventColumns) -> list[tuple]:
    c = events.finish()
    return [
        (
            int(c.start_ns_E[i]),
            int(c.duration_ns_E[i]),
            events.names[c.name_id_E[i]],
            events.categories[c.category_id_E[i]],
            events.tracks[c.track_id_E[i]],
            int(c.python_id_E[i]),
            int(c.python_parent_E[i]),
            int(c.correlation_E[i]),
        )
        for i in range(len(c.start_ns_E))
    ]


# Below 1e15 us, where a duration counts as one that never ended.
number = st.one_of(
    st.integers(0, 10**14).map(str),
    st.tuples(st.integers(0, 10**14), st.integers(0, 10**6)).map(lambda t: f"{t[0]}.{t[1]:06d}"),
    st.tuples(st.integers(0, 10**6), st.integers(-9, 8)).map(lambda t: f"{t[0]}e{t[1]}"),
    st.tuples(st.integers(1, 999), st.integers(0, 12)).map(lambda t: f"{t[0]}.5E+{t[1]}"),
)
text = st.text(max_size=30)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False,
    allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
args_of_event = st.fixed_dictionaries(
    {},
    optional={
        "Python id": st.integers(0, MAX_INT64),
        "Python parent id": st.integers(1, 2**40) | st.none(),
        "correlation": st.integers(0, 2**32),
        "Input Dims": anything,
        "External id": st.integers(0, 2**64),
        'odd "key" }{': anything,
    },
)


@st.composite
def one_event(draw: st.DrawFn) -> str:
    """JSON text of one event, members in any order, any layout."""
    members = {
        "ph": json.dumps(draw(st.sampled_from("XXXXsfiMC"))),
        "ts": draw(number),
        "dur": draw(number),
        "name": json.dumps(draw(text), ensure_ascii=draw(st.booleans())),
        "pid": json.dumps(draw(st.integers(-5, 10**6))),
        "tid": json.dumps(draw(st.integers(0, 3))),
    }
    if draw(st.booleans()):
        members["cat"] = json.dumps(draw(st.sampled_from(["cpu_op", "kernel", "Operator"])))
    if draw(st.booleans()):
        members["args"] = json.dumps(draw(args_of_event), indent=draw(st.sampled_from([None, 2])))
    if draw(st.booleans()):
        members["s"] = json.dumps(draw(anything))
    order = draw(st.permutations(sorted(members)))
    gap = draw(st.sampled_from(["", " ", "\n  ", "\r\n\t"]))
    inner = f",{gap}".join(f'"{key}"{gap}:{gap}{members[key]}' for key in order)
    return f"{{{gap}{inner}{gap}}}"


@given(
    st.lists(one_event(), max_size=5),
    st.sampled_from([",", " ,\n", ",\r\n "]),
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_any_trace_split_anywhere_gives_the_events_the_json_module_gives(events, comma, sizes):
    array = "[" + comma.join(events) + "]"
    scanned, status = scan_in_pieces(array[1:].encode(), sizes)
    assert status == scan.END_OF_ARRAY
    assert scanned_events(scanned) == expected_events(array)
    assert not scanned.defects[:, 0].any()
    assert not scanned.num_bad_strings


@given(st.binary(max_size=200), st.lists(st.integers(1, 40), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_bytes_at_all_stop_the_scanner_within_the_buffer(data, sizes):
    scanned, status = scan_in_pieces(b'{"ph":"X","ts":1,"dur":2' + data, sizes)
    assert status in (scan.NEED_MORE, scan.END_OF_ARRAY, scan.DAMAGED)
    assert scanned.num_events <= 1 + data.count(b"{")


def parse(text: str, shift: int = 3) -> tuple[int, bool]:
    value, fits = scan.parse_decimal(np.frombuffer(text.encode(), np.uint8), 0, len(text), shift)
    return int(value), bool(fits)


def test_numbers_become_exact_nanoseconds():
    assert parse("1712195495406752.8") == (1712195495406752800, True)
    assert parse("5101124813514.571") == (5101124813514571, True)
    assert parse('"12.5"') == (12500, True)
    assert parse("-12.5") == (-12500, True)
    assert parse("1.5e3") == (1500000, True)
    assert parse("2E-3") == (2, True)
    assert parse("0.0005") == (1, True)  # rounded half up
    assert parse("0.00049999999999999999999999") == (0, True)
    assert parse("9223372036854775.807") == (MAX_INT64, True)


def test_what_is_no_number_or_does_not_fit_is_told():
    for text in ("", "-", "N/A", "NaN", "inf", "1.2.3", "1e", "12x", '""', "null", "0x10"):
        assert not parse(text)[1], text
    assert not parse("9223372036854776")[1]
    assert not parse("1e40")[1]
    assert parse("18446744073709551615", 0)[1] is False
    assert parse("0e999999999") == (0, True)
    assert parse("1e-999999999") == (0, True)


@given(st.integers(0, 2**62), st.integers(-25, 3))
def test_scaling_by_a_power_of_ten_agrees_with_decimal(mantissa, exponent):
    wanted = int((Decimal(mantissa).scaleb(exponent + 3)).to_integral_value(ROUND_HALF_UP))
    value, fits = parse(f"{mantissa}e{exponent}")
    assert fits == (wanted <= MAX_INT64)
    if fits:
        assert value == wanted


def test_equal_strings_of_many_have_equal_ids_when_the_table_grows():
    names = [f"kernel_{i % 5000}" for i in range(12000)]
    data = ",".join(f'{{"ph":"X","ts":{i},"dur":1,"name":"{n}"}}' for i, n in enumerate(names))
    scanned, status = scan_in_pieces((data + "]").encode(), [100_000])
    assert status == scan.END_OF_ARRAY
    columns = scanned.finish()
    assert len(scanned.names) == 5000
    assert [scanned.names[i] for i in columns.name_id_E] == names
    assert columns.start_ns_E.tolist() == [i * 1000 for i in range(12000)]


def test_names_that_are_not_json_are_still_text():
    assert decode_string(b'"torch\\cuda\\__init__.py"') == ("torch\\cuda\\__init__.py", False)
    assert decode_string(b'"a\xffb"') == ("a�b", False)
    assert decode_string(b'"a\x01b"') == ("a\x01b", False)
    assert decode_string(b'"\\u00e9\\n"') == ("é\n", True)
    assert decode_string(b"17957") == ("17957", True)

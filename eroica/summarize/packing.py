"""A rank's patterns as 30 KB of bytes, and back.

msgpack inside zstd. Stacks are kept once: a tree of frames (caller, place) that the functions
point into; strings once, in a table; columns as little-endian bytes; times of collectives as
differences. If a window does not fit, first the collectives that are oldest go, then functions
smaller than ever larger limits fold into ``rest``; both are told in ``warnings``.
"""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from eroica.columns import Arrivals, Float32, RankPatterns
from eroica.config import Parameters
from eroica.errors import InputError
from eroica.records import Function, FunctionKind, Place, Setting, Warning
from eroica.summarize.fold import REST
from eroica.summarize.pack_arrivals import PackedArrivals, newest, pack_arrivals, unpack_arrivals

_VERSION = 1
_MAX_UNPACKED_BYTES = 64 << 20  # a packed rank that claims more is not one of ours
_MAX_PLACES = 16 << 20  # of all stacks together: 128 MB of references
_LEVEL = 9
_MIN_ARRIVALS = 200
_MAX_COUNT = 2**31 - 1
_RAISED_LIMITS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05)


class _Packed(msgspec.Struct, array_like=True):
    """The packed form; new fields go to the end and get defaults."""

    version: int
    rank: int
    host: str
    source: str
    window_ns: int
    num_steps: int | None
    proxy: str
    is_sampled: bool
    strings: list[str]
    frames: list[tuple[int, int, int, int]]
    """(caller frame, name, file, line), -1 for none."""
    functions: list[tuple[str, FunctionKind, int, int, int, int, int, int]]
    """(id, kind, name, file, line, group, frame, module)."""
    beta: bytes
    mu: bytes
    sigma: bytes
    reference: bytes | None
    count: bytes
    total_ns: bytes
    breakdown: dict[str, float]
    groups: dict[str, tuple[int, ...]]
    settings: list[Setting]
    warnings: list[Warning]
    arrivals: PackedArrivals | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Packed)


class _Strings:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        return -1 if text is None else self.numbers.setdefault(text, len(self.numbers))


def pack(patterns: RankPatterns, *, max_bytes: int | None = None) -> bytes:
    """Return the patterns as bytes, at most ``max_bytes`` (parameter ``pattern_bytes``)."""
    limit = Parameters().pattern_bytes if max_bytes is None else max_bytes
    packed = _pack(patterns)
    arrivals = patterns.arrivals
    while len(packed) > limit and arrivals is not None and len(arrivals.key_C) > _MIN_ARRIVALS:
        arrivals = newest(arrivals, max(len(arrivals.key_C) // 2, _MIN_ARRIVALS))
        packed = _pack(_shortened(patterns, arrivals))
    shortened = patterns if arrivals is patterns.arrivals else _shortened(patterns, arrivals)
    for beta in _RAISED_LIMITS:
        if len(packed) <= limit:
            break
        packed = _pack(_without_small(shortened, beta))
    return packed


def unpack(data: bytes) -> RankPatterns:
    """Return what ``pack`` made; bytes that are no packed rank raise InputError."""
    try:
        packed = _decoder.decode(_decompress(data))
        return _build(packed)
    except (
        zstandard.ZstdError,
        msgspec.DecodeError,
        msgspec.ValidationError,
        ValueError,
        IndexError,
    ) as error:
        raise InputError(
            "packed patterns of a rank cannot be read",
            f"found {len(data)} bytes: {error}",
            "collect the patterns again with this version of eroica",
        ) from error


def _decompress(data: bytes) -> bytes:
    # A frame that tells its size is taken at its word: ``max_output_size`` is for the others.
    told = zstandard.get_frame_parameters(data).content_size
    if told > _MAX_UNPACKED_BYTES and told != zstandard.CONTENTSIZE_UNKNOWN:
        raise ValueError(f"{told} bytes unpacked, a rank has {_MAX_UNPACKED_BYTES} at most")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_UNPACKED_BYTES)


def _pack(patterns: RankPatterns) -> bytes:
    strings = _Strings()
    frames: dict[tuple[int, int, int, int], int] = {}
    functions = []
    for function in patterns.functions:
        frame = -1
        for place in reversed(function.stack):
            key = (
                frame,
                strings.number(place.name),
                strings.number(place.file),
                -1 if place.line is None else place.line,
            )
            frame = frames.setdefault(key, len(frames))
        functions.append(
            (
                function.id,
                function.kind,
                strings.number(function.name),
                strings.number(function.file),
                -1 if function.line is None else function.line,
                strings.number(function.group),
                frame,
                strings.number(function.module),
            )
        )
    record = _Packed(
        version=_VERSION,
        rank=patterns.rank,
        host=patterns.host,
        source=patterns.source,
        window_ns=patterns.window_ns,
        num_steps=patterns.num_steps,
        proxy=patterns.proxy,
        is_sampled=patterns.is_sampled,
        strings=list(strings.numbers),
        frames=list(frames),
        functions=functions,
        beta=_bytes(patterns.beta_F, "<f4"),
        mu=_bytes(patterns.mu_F, "<f4"),
        sigma=_bytes(patterns.sigma_F, "<f4"),
        reference=None if patterns.reference_F is None else _bytes(patterns.reference_F, "<f4"),
        count=_bytes(patterns.count_F, "<i4"),
        total_ns=_bytes(patterns.total_ns_F, "<i8"),
        breakdown=patterns.breakdown,
        groups=patterns.groups,
        settings=list(patterns.settings),
        warnings=list(patterns.warnings),
        arrivals=None if patterns.arrivals is None else pack_arrivals(patterns.arrivals),
    )
    return zstandard.ZstdCompressor(level=_LEVEL).compress(_encoder.encode(record))


def _build(packed: _Packed) -> RankPatterns:
    if packed.version > _VERSION:
        raise ValueError(f"version {packed.version}, this eroica knows up to {_VERSION}")
    strings = packed.strings

    def text(number: int) -> str | None:
        return None if number < 0 else strings[number]

    stacks: list[tuple[Place, ...]] = []
    num_places = 0
    for caller, name, file, line in packed.frames:
        if caller >= len(stacks):
            raise ValueError("a frame comes before its caller")
        place = Place(name=strings[name], file=text(file), line=None if line < 0 else line)
        stacks.append((place, *(stacks[caller] if caller >= 0 else ())))
        num_places += len(stacks[-1])
        if num_places > _MAX_PLACES:
            raise ValueError("stacks are deeper than any program's")
    functions = tuple(
        Function(
            id=id,
            kind=kind,
            name=strings[name],
            file=text(file),
            line=None if line < 0 else line,
            group=text(group),
            stack=stacks[frame] if frame >= 0 else (),
            module=text(module) or "",
        )
        for id, kind, name, file, line, group, frame, module in packed.functions
    )
    lengths = {len(packed.beta), len(packed.mu), len(packed.sigma), len(packed.count)}
    if packed.reference is not None:
        lengths.add(len(packed.reference))
    if lengths != {4 * len(functions)} or len(packed.total_ns) != 8 * len(functions):
        raise ValueError("columns and functions are of different number")
    return RankPatterns(
        rank=packed.rank,
        functions=functions,
        beta_F=_floats(packed.beta),
        mu_F=_floats(packed.mu),
        sigma_F=_floats(packed.sigma),
        count_F=np.frombuffer(packed.count, "<i4").astype(np.int32),
        total_ns_F=np.frombuffer(packed.total_ns, "<i8").astype(np.int64),
        window_ns=packed.window_ns,
        num_steps=packed.num_steps,
        host=packed.host,
        proxy=packed.proxy,
        is_sampled=packed.is_sampled,
        breakdown=packed.breakdown,
        arrivals=None if packed.arrivals is None else unpack_arrivals(packed.arrivals),
        settings=tuple(packed.settings),
        warnings=tuple(packed.warnings),
        reference_F=None if packed.reference is None else _floats(packed.reference),
        groups=packed.groups,
        source=packed.source,
    )


def _shortened(patterns: RankPatterns, arrivals: Arrivals | None) -> RankPatterns:
    """Return the patterns with fewer collectives and a warning that says so."""
    before = 0 if patterns.arrivals is None else len(patterns.arrivals.key_C)
    after = 0 if arrivals is None else len(arrivals.key_C)
    what = f"rank {patterns.rank}: the last {after} of {before} collectives kept, to fit its bytes"
    return replace(
        patterns,
        arrivals=arrivals,
        warnings=(*patterns.warnings, Warning(file=patterns.source or None, what=what)),
    )


def _without_small(patterns: RankPatterns, limit: float) -> RankPatterns:
    """Return the patterns with functions below ``limit`` in rest and a warning that says so."""
    is_rest = np.array([function.kind == "rest" for function in patterns.functions], bool)
    small = (patterns.beta_F < limit) & ~is_rest
    keep = ~small & ~is_rest
    dropped = small | is_rest
    functions = tuple(f for f, kept in zip(patterns.functions, keep, strict=True) if kept)

    def column(values: NDArray[Any], rest: float) -> NDArray[Any]:
        return np.concatenate((values[keep], np.array([rest], values.dtype)))

    ids = {function.id for function in functions} | {""}
    arrivals = patterns.arrivals
    if arrivals is not None:
        culprits = tuple(id if id in ids else REST.id for id in arrivals.culprit_C)
        arrivals = replace(arrivals, culprit_C=culprits)
    what = f"rank {patterns.rank}: {int(small.sum())} functions below {limit:.1%} folded to fit"
    return replace(
        patterns,
        functions=(*functions, REST),
        beta_F=column(patterns.beta_F, float(patterns.beta_F[dropped].sum())),
        mu_F=column(patterns.mu_F, 0.0),
        sigma_F=column(patterns.sigma_F, 0.0),
        count_F=column(patterns.count_F, min(int(patterns.count_F[dropped].sum()), _MAX_COUNT)),
        total_ns_F=column(patterns.total_ns_F, int(patterns.total_ns_F[dropped].sum())),
        reference_F=None if patterns.reference_F is None else column(patterns.reference_F, 0.0),
        arrivals=arrivals,
        warnings=(*patterns.warnings, Warning(file=patterns.source or None, what=what)),
    )


def _floats(raw: bytes) -> Float32:
    values = np.frombuffer(raw, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a pattern that is no number")
    return values


def _bytes(column: NDArray[Any], dtype: str) -> bytes:
    return column.astype(dtype).tobytes()

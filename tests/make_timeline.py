"""Hand-made timelines: events written as tuples, times in the unit the test likes."""

import os
from pathlib import Path

import numpy as np
import pytest

from eroica.columns import CollectiveColumns, Timeline, Track

TRACKS = {
    "main": Track(pid="10", tid="10", name="thread 10 (python3)"),
    "autograd": Track(pid="10", tid="11", name="thread 11 (pt_autograd_0)"),
    "gloo": Track(pid="10", tid="12", name="thread 12 (pt_gloo_runloop)"),
    "gloo2": Track(pid="10", tid="13", name="thread 13 (pt_gloo_runloop)"),
    "other": Track(pid="10", tid="14", name="thread 14 (logger)"),
    "lost": Track(pid="10", tid="0", name=""),
    "stream7": Track(pid="0", tid="7", is_device=True, device=0, stream=7),
    "stream9": Track(pid="0", tid="9", is_device=True, device=0, stream=9),
    "stream84": Track(pid="0", tid="84", is_device=True, device=0, stream=84),
}


def make_timeline(events, *, rank=0, window=None, unit_ns=1, collectives=(), **more):
    """Build a timeline from (category, name, track, start, duration[, python_id]) tuples.

    ``collectives`` are (event index, op, group, sequence, bytes).
    """
    names, categories, tracks = {}, {}, {}
    rows = []
    for category, name, track, start, duration, *python_id in events:
        rows.append(
            (
                start * unit_ns,
                duration * unit_ns,
                names.setdefault(name, len(names)),
                categories.setdefault(category, len(categories)),
                tracks.setdefault(track, len(tracks)),
                python_id[0] if python_id else -1,
            )
        )
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    ops = tuple(dict.fromkeys(row[1] for row in collectives))
    groups = tuple(dict.fromkeys(["", *(row[2] for row in collectives)]))
    none = np.full(len(rows), -1, np.int64)
    return Timeline(
        path="hand-made",
        rank=rank,
        world_size=None,
        start_ns_E=columns[0],
        duration_ns_E=columns[1],
        name_id_E=columns[2].astype(np.int32),
        category_id_E=columns[3].astype(np.int16),
        track_id_E=columns[4].astype(np.int32),
        python_id_E=columns[5],
        python_parent_E=none,
        correlation_E=none,
        names=tuple(names),
        categories=tuple(categories),
        tracks=tuple(TRACKS[name] for name in tracks),
        collectives=CollectiveColumns(
            event_C=np.array([row[0] for row in collectives], np.int64),
            op_id_C=np.array([ops.index(row[1]) for row in collectives], np.int32),
            group_id_C=np.array([groups.index(row[2]) for row in collectives], np.int32),
            sequence_C=np.array([row[3] for row in collectives], np.int64),
            num_bytes_C=np.array([row[4] for row in collectives], np.int64),
            ops=ops,
            groups=groups,
        ),
        window=None if window is None else (window[0] * unit_ns, window[1] * unit_ns),
        **more,
    )


def betas(patterns):
    """Return beta by function name, rounded to what float32 holds."""
    return {
        function.name: round(float(beta), 6)
        for function, beta in zip(patterns.functions, patterns.beta_F, strict=True)
    }


def shared(*parts):
    """Return a path in the shared data next to the repository; skip the test where it is absent."""
    root = os.environ.get("EROICA_SHARED") or Path(__file__).parents[2] / "shared"
    path = Path(root, "data", *parts)
    if not path.exists():
        pytest.skip(f"needs the shared data set: {'/'.join(parts)} is not there")
    return path

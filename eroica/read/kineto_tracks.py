"""Categories and tracks of a trace, whatever torch release wrote them, in today's words."""

import re

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int16, Int32, Track
from eroica.read import scan
from eroica.read.kineto_columns import Marked
from eroica.read.kineto_info import parse_event

_OLD_CATEGORIES = {  # torch 1.8 to 1.11
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "user_scope": "user_annotation",
}
DEVICE_CATEGORIES = frozenset(
    ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "mtia_ccp_events")
)
LAUNCH_CATEGORIES = frozenset(
    f"{device}_{layer}"
    for device in ("cuda", "hip", "xpu", "mtia", "glow", "privateuse1")
    for layer in ("runtime", "driver")
)
_NUMBER = re.compile(r"-?\d+")


def unique_ids(id_E: Int32, texts: list[str]) -> tuple[Int32, tuple[str, ...]]:
    """Give equal texts one id: a name may be spelled with different escapes in one file."""
    first: dict[str, int] = {}
    new_ids = [first.setdefault(text, len(first)) for text in texts]
    if len(first) == len(texts):
        return id_E, tuple(texts)
    return np.array(new_ids, np.int32)[id_E], tuple(first)


def normalize_categories(
    category_id_E: Int32, categories: list[str]
) -> tuple[Int16, tuple[str, ...]]:
    """Return int16 ids and names in lower case as torch >= 1.13 writes them."""
    lowered = [name.lower() for name in categories]
    ids, names = unique_ids(category_id_E, [_OLD_CATEGORIES.get(name, name) for name in lowered])
    return ids.astype(np.int16), names


def fill_missing_categories(
    category_id_E: Int16,
    categories: tuple[str, ...],
    track_id_E: Int32,
    tracks: list[tuple[str, str]],
) -> tuple[Int16, tuple[str, ...]]:
    """Name the events of the legacy profiler, which has no categories but telling pids."""
    if "" not in categories:
        return category_id_E, categories
    kinds = [{"CPU functions": 1, "CUDA functions": 2}.get(pid, 0) for pid, _ in tracks]
    if not any(kinds):
        return category_id_E, categories
    names = [*categories, "cpu_op", "kernel"]
    kind_E = np.array(kinds, np.int16)[track_id_E]
    is_nameless_E = (category_id_E == categories.index("")) & (kind_E > 0)
    filled_E = np.where(is_nameless_E, kind_E + np.int16(len(categories) - 1), category_id_E)
    ids, unique = unique_ids(filled_E.astype(np.int32), names)
    return ids.astype(np.int16), unique


def build_tracks(
    track_id_E: Int32,
    category_id_E: Int16,
    *,
    categories: tuple[str, ...],
    tracks: list[tuple[str, str]],
    marked: list[Marked],
) -> tuple[Int32, tuple[Track, ...]]:
    """Return track ids and tracks with thread names, device and stream."""
    keys = [(pid, _tid(tid)) for pid, tid in tracks]
    ids, unique = unique_ids(track_id_E, [f"{pid}\n{tid}" for pid, tid in keys])
    is_device_T = device_tracks(ids, category_id_E, categories, len(unique))
    names = _thread_names(marked)
    built = []
    for text, is_device in zip(unique, is_device_T.tolist(), strict=True):
        pid, _, tid = text.partition("\n")
        built.append(
            Track(
                pid=pid,
                tid=tid,
                name=names.get((pid, tid), ""),
                is_device=is_device,
                device=_first_number(pid) if is_device else None,
                stream=_first_number(tid) if is_device else None,
            )
        )
    return ids, tuple(built)


def device_tracks(
    track_id_E: Int32, category_id_E: Int16, categories: tuple[str, ...], num_tracks: int
) -> NDArray[np.bool_]:
    """Return for each track whether anything on it ran on a device."""
    wanted = [k for k, name in enumerate(categories) if name in DEVICE_CATEGORIES]
    is_device_T = np.zeros(num_tracks, bool)
    is_device_T[track_id_E[np.isin(category_id_E, wanted)]] = True
    return is_device_T


def _thread_names(marked: list[Marked]) -> dict[tuple[str, str], str]:
    """Return the first name told for each (pid, tid): later ones are the process's, repeated."""
    names: dict[tuple[str, str], str] = {}
    for item in marked:
        if item.mark == scan.MARK_METADATA and b"thread_name" in item.text:
            event = parse_event(item.text)
            name = event.get("args", {}).get("name")
            if event.get("name") == "thread_name" and isinstance(name, str):
                key = (str(event.get("pid", "")), _tid(str(event.get("tid", ""))))
                names.setdefault(key, name)
    return names


def _tid(text: str) -> str:
    """Kineto cut thread ids to 32 bits with sign until 2024-10; today it writes the absolute."""
    return text[1:] if text[:1] == "-" and text[1:].isdecimal() else text


def _first_number(text: str) -> int | None:
    found = _NUMBER.search(text)
    return int(found[0]) if found and len(found[0]) < 19 else None

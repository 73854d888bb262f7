"""Event to lane: the first step of a summary.

The paper's order is GPU compute kernel > memory operation > collective > Python function. A
*lane* is a stack of which only the most recent event counts; a *level* is the rank an event
has in that order (lower wins).

| lane | holds | level |
|---|---|---|
| device | kernels that are no collective | compute |
| memory | copies and memsets on the device | memory |
| collective | NCCL / RCCL kernels; gloo, MPI and UCC annotations | collective |
| training | ops, runtime calls and Python calls of the training thread | host |
| backward | the same on the threads of the autograd engine | backward |

On a CPU-only job the training thread's ATen operators stand where kernels do: level compute.
The frame that waits for the autograd engine has the lowest level, so that the engine's threads
show what is really done. ``nccl:`` annotations are launches, ``gpu_user_annotation`` and other
annotations are containers, other threads do not hold the training thread: none of them counts.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int16, Int32, Int64, Timeline
from eroica.read.compiled import compiled
from eroica.summarize.names import GC_NAME, MODULE_PREFIX

Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

LANE_NONE, LANE_DEVICE, LANE_MEMORY, LANE_COLLECTIVE, LANE_TRAINING, LANE_BACKWARD = range(-1, 5)
NUM_LANES = 5
LEVEL_COMPUTE, LEVEL_MEMORY, LEVEL_COLLECTIVE, LEVEL_HOST, LEVEL_BACKWARD, LEVEL_WAITING = range(6)
NUM_LEVELS = 6
SHAPE_PYTHON, SHAPE_OP, SHAPE_MODULE, SHAPE_GC = range(4)

_KERNEL_CATEGORIES = frozenset({"kernel", "mtia_ccp_events", "hpu_op", "xpu_kernel"})
_MEMORY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_OP_CATEGORIES = frozenset({"cpu_op", "operator"})
_RUNTIME_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "mtia_runtime", "xpu_driver"}
)
_PYTHON_CATEGORIES = frozenset({"python_function"})
_ANNOTATION_CATEGORIES = frozenset({"user_annotation"})

# MTIA writes all that a device does in one category: copies, and a stream waiting for another.
_DEVICE_COPY = re.compile(r"^dma_request\b")
_DEVICE_WAIT = re.compile(r"^event_(?:wait|record)\b")
_COLLECTIVE_KERNEL = re.compile(
    r"nccl|\brccl|msccl|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_(?:all|one)"
    r"|nvshmem|deep_ep::|symm_mem.*(?:all_reduce|all_gather|barrier)",
    re.IGNORECASE,
)
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):(?P<op>\w+)")
_COMMUNICATION_OP = re.compile(
    r"^(?:c10d::|_c10d_functional::|c10d_functional::|record_param_comms)"
)
_BACKWARD_OP = re.compile(r"^autograd::engine::evaluate_function")
_MODULE_FRAME = re.compile("^" + re.escape(MODULE_PREFIX))
_GC_EVENT = re.compile("^" + re.escape(GC_NAME))
_ENGINE_WAIT = re.compile(r"\brun_backward\b")
_STEP_NAME = re.compile(
    r"^(?:ProfilerStep|Optimizer\.step|Optimizer\.zero_grad|enumerate\(DataLoader\))#"
    r"|^DistributedDataParallel\.forward"
)
_TRAINING_FRAME = re.compile(
    r"torch/optim/\w+\.py\(\d+\): step$|\brun_backward\b|_engine_run_backward"
)
_MAIN_FRAME = re.compile(r": <module>$")
UNFINISHED_NS = 10**15
"""A duration from here on is an event whose end was never written (pytorch#124080)."""


@dataclass(frozen=True)
class Lanes:
    """Where each event of a timeline counts."""

    lane_E: Int8
    level_E: Int8
    shape_E: Int8
    track_E: NDArray[np.int32]
    """Track, with chained threads taken apart."""
    training_track: int
    """-1 where no host thread is in the trace."""
    has_device: bool


class NameSets:
    """Looks a name up once a category, not once an event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._is_used_CN = np.zeros((len(timeline.categories), len(timeline.names)), np.bool_)
        _mark_used(timeline.category_id_E, timeline.name_id_E, self._is_used_CN)

    def mask(self, categories: Iterable[str]) -> Bool:
        """Return which events are of one of the categories."""
        flags = self._flags(categories)
        if not flags.any():
            return np.zeros(self._timeline.num_events, bool)
        return np.asarray(flags[self._timeline.category_id_E])

    def matching(self, categories: Iterable[str], pattern: "re.Pattern[str]") -> Bool:
        """Return which events of the categories have a name in which the pattern is found."""
        timeline, flags = self._timeline, self._flags(categories)
        hit_CN = np.zeros_like(self._is_used_CN)
        names = np.flatnonzero(self._is_used_CN[flags].any(axis=0))
        hits = [i for i in names if pattern.search(timeline.names[i])]
        if not hits:
            return np.zeros(timeline.num_events, bool)
        hit_CN[np.ix_(np.flatnonzero(flags), hits)] = True
        found_E = np.empty(timeline.num_events, np.bool_)
        _look_up(hit_CN, timeline.category_id_E, timeline.name_id_E, found_E)
        return found_E

    def _flags(self, categories: Iterable[str]) -> Bool:
        return np.array([name.lower() in categories for name in self._timeline.categories], bool)


@compiled
def _mark_used(category_id_E: Int16, name_id_E: Int32, is_used_CN: Bool) -> None:
    for event in range(len(name_id_E)):
        is_used_CN[category_id_E[event], name_id_E[event]] = True


@compiled
def _look_up(hit_CN: Bool, category_id_E: Int16, name_id_E: Int32, found_E: Bool) -> None:
    for event in range(len(name_id_E)):
        found_E[event] = hit_CN[category_id_E[event], name_id_E[event]]


def classify(timeline: Timeline) -> Lanes:
    """Return lane, level and shape of every event of one rank."""
    sets = NameSets(timeline)
    num_events = timeline.num_events
    lane_E = np.full(num_events, LANE_NONE, np.int8)
    level_E = np.full(num_events, LEVEL_HOST, np.int8)
    shape_E = np.full(num_events, SHAPE_OP, np.int8)

    kernels = sets.mask(_KERNEL_CATEGORIES)
    memory = sets.mask(_MEMORY_CATEGORIES) | sets.matching({"mtia_ccp_events"}, _DEVICE_COPY)
    ops = sets.mask(_OP_CATEGORIES)
    runtime = sets.mask(_RUNTIME_CATEGORIES)
    python = sets.mask(_PYTHON_CATEGORIES)
    annotations = sets.mask(_ANNOTATION_CATEGORIES)
    device_collectives = sets.matching(_KERNEL_CATEGORIES, _COLLECTIVE_KERNEL) | sets.mask(
        {"collective_comm"}
    )
    host_collectives = sets.matching(_ANNOTATION_CATEGORIES, _HOST_COLLECTIVE)
    has_device = bool(kernels.any() or memory.any())

    lane_E[kernels], level_E[kernels] = LANE_DEVICE, LEVEL_COMPUTE
    lane_E[memory], level_E[memory] = LANE_MEMORY, LEVEL_MEMORY
    lane_E[sets.matching({"mtia_ccp_events"}, _DEVICE_WAIT)] = LANE_NONE
    told_by_reader = np.zeros(num_events, bool)
    told_by_reader[timeline.collectives.event_C] = True
    told_by_reader &= kernels | annotations
    for collectives in (device_collectives, host_collectives, told_by_reader):
        lane_E[collectives], level_E[collectives] = LANE_COLLECTIVE, LEVEL_COLLECTIVE

    track_E = split_chained_threads(timeline, python)
    host = ops | python | runtime
    training = find_training_track(timeline, track_E, ops, python, sets)
    if training >= 0:
        on_training = host & (track_E == training)
        lane_E[on_training] = LANE_TRAINING
        backward_tracks = np.unique(track_E[sets.matching(_OP_CATEGORIES, _BACKWARD_OP)])
        on_backward = host & np.isin(track_E, backward_tracks[backward_tracks != training])
        lane_E[on_backward], level_E[on_backward] = LANE_BACKWARD, LEVEL_BACKWARD
        waiting = on_training & sets.matching(_PYTHON_CATEGORIES, _ENGINE_WAIT)
        level_E[waiting] = LEVEL_WAITING
        if not has_device:
            level_E[on_training & ops] = LEVEL_COMPUTE
            told = sets.matching(_OP_CATEGORIES, _COMMUNICATION_OP)
            level_E[on_training & told] = LEVEL_COLLECTIVE

    shape_E[python] = SHAPE_PYTHON
    shape_E[sets.matching(_PYTHON_CATEGORIES, _MODULE_FRAME)] = SHAPE_MODULE
    shape_E[sets.matching(_PYTHON_CATEGORIES, _GC_EVENT)] = SHAPE_GC
    lane_E[timeline.duration_ns_E >= UNFINISHED_NS] = LANE_NONE
    return Lanes(lane_E, level_E, shape_E, track_E, training, has_device)


def find_training_track(
    timeline: Timeline,
    track_E: NDArray[np.int32],
    ops: Bool,
    python: Bool,
    sets: NameSets,
) -> int:
    """Return the track of the thread that trains, -1 where no host thread was recorded.

    Step, optimizer and loader annotations decide; without them optimizer and backward frames;
    then the main thread (``<module>``, or tid = pid) if it ran Python; then who has most events.
    """
    num_tracks = int(track_E.max()) + 1 if len(track_E) else 0

    def count(events: Bool) -> Int64:
        return np.bincount(track_E[events], minlength=num_tracks).astype(np.int64)

    python_T, op_T = count(python), count(ops)
    scores = (
        count(sets.matching(_ANNOTATION_CATEGORIES, _STEP_NAME)),
        count(sets.matching(_PYTHON_CATEGORIES, _TRAINING_FRAME)),
        (count(sets.matching(_PYTHON_CATEGORIES, _MAIN_FRAME)) > 0)
        | _is_main_thread(timeline, python_T),
        python_T,
        op_T,
    )
    host_T = np.flatnonzero(python_T + op_T)
    if not len(host_T):
        return -1
    return int(max(host_T, key=lambda track: tuple(int(score[track]) for score in scores)))


def _is_main_thread(timeline: Timeline, python_T: Int64) -> Bool:
    """Return which tracks are a process's first thread and ran Python."""
    is_main_T = np.zeros(len(python_T), bool)
    for i, track in enumerate(timeline.tracks[: len(python_T)]):
        is_main_T[i] = track.pid == track.tid and python_T[i] > 0
    return is_main_T


def split_chained_threads(timeline: Timeline, python: Bool) -> NDArray[np.int32]:
    """Return the track of each event, with the threads that Kineto chained into tid 0 apart.

    Threads that make no Python call in the window all land in tid 0, one thread's root under
    another's leaf. A thread begins where ``<module>`` or ``_bootstrap`` is called.
    """
    track_E = timeline.track_id_E
    chained = [
        i for i, track in enumerate(timeline.tracks) if track.tid == "0" and not track.is_device
    ]
    for track in chained:
        events = np.flatnonzero(python & (track_E == track))
        events = events[timeline.python_id_E[events] >= 0]
        if not len(events):
            continue
        events = events[np.argsort(timeline.python_id_E[events], kind="stable")]
        is_root = np.array(
            [
                timeline.names[i].endswith((": <module>", ": _bootstrap"))
                for i in timeline.name_id_E[events]
            ]
        )
        part = np.maximum(np.cumsum(is_root) - 1, 0)
        if part.max() > 0:
            track_E = track_E.copy() if track_E is timeline.track_id_E else track_E
            first_free = int(track_E.max()) + 1
            track_E[events] = np.where(part == 0, track, first_free + part - 1)
    return track_E

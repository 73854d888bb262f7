"""py-spy samples of a rank to Python-only patterns: what is left where no profiler may run.

beta is the share of the training thread's samples whose innermost frame it is. A sample taken while
the thread waits is told by its frames: inside ``torch/distributed`` calls or the backward engine,
idle, it waits for a collective; inside the loader's ``__next__`` it waits for data. Children
(loader workers) run beside the training thread and never hold its path: they are listed with
beta 0 and a marker in the name, their share of CPU in mu.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from eroica.columns import RankPatterns
from eroica.records import Function, FunctionKind, Place, SampledStack, Samples
from eroica.summarize.names import function_id, strip_addresses

_DISTRIBUTED = re.compile(
    r"torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)\.py$"
)
_TORCH = re.compile(r"(?:^|/)torch/")
_WAIT_FRAME = re.compile(r"^(?:wait|wait_tensor|_wait|synchronize)$")
_ENGINE = re.compile(r"^_engine_run_backward$|\brun_backward\b")
_COLLECTIVE = re.compile(
    r"^(?:barrier|monitored_barrier|wait|send|recv|scatter|gather|reduce|broadcast"
    r"|all_(?:reduce|gather|to_all)\w*|reduce_scatter\w*|batch_isend_irecv"
    r"|(?:broadcast|gather|scatter|all_gather)_object\w*|_all_gather_base)$"
)
_LOADER_FILES = (
    "torch/utils/data/dataloader.py",
    "torchdata/stateful_dataloader/stateful_dataloader.py",
)


@dataclass
class _Seen:
    function: Function
    count: int = 0
    active: int = 0
    is_child: bool = False
    is_data: bool = False


def summarize_samples(
    samples: Samples, *, rank: int, project_root: str | None = None, host: str = ""
) -> RankPatterns:
    """Return Python-only patterns of one rank; ``is_sampled`` is set.

    ``project_root`` is cut from file names, so that ranks on hosts with other checkouts agree.
    count is samples, total_ns their share of the window; mu is the share of samples on CPU.
    """
    own = [stack for stack in samples.stacks if not stack.process]
    thread = training_thread(own)
    on_thread = [stack for stack in own if stack.thread == thread]
    children = [stack for stack in samples.stacks if stack.process]
    taken = sum(stack.count for stack in on_thread)
    seen: dict[str, _Seen] = {}
    for stack in (*on_thread, *children):
        if stack.frames:
            _count(seen, stack, project_root)
    entries = sorted(seen.values(), key=lambda one: (one.is_child, -one.count))
    window_ns = max(samples.end_ns - samples.start_ns, 0)
    path = np.array([0 if one.is_child else one.count for one in entries], np.float64)
    counts = np.array([one.count for one in entries], np.int64)
    active = np.array([one.active for one in entries], np.int64)
    mu = active / np.maximum(counts, 1)
    num_samples = max(taken, samples.num_samples, 1)
    return RankPatterns(
        rank=rank,
        functions=tuple(one.function for one in entries),
        beta_F=(path / num_samples).astype(np.float32),
        mu_F=mu.astype(np.float32),
        sigma_F=np.sqrt(mu * (1 - mu)).astype(np.float32),
        count_F=counts.astype(np.int32),
        total_ns_F=(counts * (window_ns / num_samples)).astype(np.int64),
        window_ns=window_ns,
        host=host,
        proxy="python: share of samples on CPU",
        is_sampled=True,
        breakdown=_break_down([one for one in entries if not one.is_child], num_samples),
    )


def training_thread(stacks: Sequence[SampledStack]) -> str:
    """Return the name of the rank's thread that trains.

    It is the one seen in backward or an optimizer (some launchers train in a thread of their own),
    the main one of several; then the main thread; then who is most on CPU.
    """
    scores: dict[str, list[int]] = {}
    for stack in stacks:
        if not stack.process:
            score = scores.setdefault(stack.thread, [0, int("MainThread" in stack.thread), 0, 0])
            score[0] |= any(_is_training(frame) for frame in stack.frames)
            score[2] += stack.active_count
            score[3] += stack.count
    return max(scores, key=lambda name: scores[name], default="")


def _is_training(frame: Place) -> bool:
    return bool(_ENGINE.search(frame.name)) or "torch/optim/" in (frame.file or "")


def _count(seen: dict[str, _Seen], stack: SampledStack, project_root: str | None) -> None:
    """Count a stack; one that computes and waits at the same place counts as both, by its CPU."""
    frames = tuple(_normalize(frame, project_root) for frame in stack.frames)
    if stack.process:
        _add(seen, stack, frames, "python")
        return
    on_cpu, off_cpu = _kind(frames, is_idle=False), _kind(frames, is_idle=True)
    if on_cpu == off_cpu:
        _add(seen, stack, frames, on_cpu)
        return
    active = min(stack.active_count, stack.count)
    for kind, count, num_active in ((on_cpu, active, active), (off_cpu, stack.count - active, 0)):
        if count:
            part = msgspec.structs.replace(stack, count=count, active_count=num_active)
            _add(seen, part, frames, kind)


def _add(
    seen: dict[str, _Seen], stack: SampledStack, frames: tuple[Place, ...], kind: FunctionKind
) -> None:
    marker = f"[{stack.process}] " if stack.process else ""
    identity = [f"{frame.file or ''}|{frame.name}" for frame in reversed(frames)]
    id = function_id(kind, marker, *identity)
    entry = seen.get(id)
    if entry is None:
        here = frames[0]
        function = Function(
            id=id,
            kind=kind,
            name=marker + here.name,
            file=here.file,
            line=here.line,
            stack=frames[1:],
        )
        is_data = not stack.process and any(_is_loader_next(frame) for frame in frames)
        entry = seen[id] = _Seen(function, is_child=bool(stack.process), is_data=is_data)
    entry.count += stack.count
    entry.active += stack.active_count


def _kind(frames: tuple[Place, ...], *, is_idle: bool) -> FunctionKind:
    """Return ``collective`` for a thread that waits for its peers, else ``python``.

    The frames nearest to the innermost decide: a hook in user code under ``backward`` is Python.
    """
    for depth, frame in enumerate(frames[:4]):
        file = frame.file or ""
        if _DISTRIBUTED.search(file) and (_COLLECTIVE.match(frame.name) or depth == 0):
            return "collective"
        if _ENGINE.search(frame.name) and is_idle and depth <= 1:
            return "collective"
        in_torch = bool(_TORCH.search(file))
        if depth == 0 and _WAIT_FRAME.match(frame.name) and in_torch and is_idle:
            return "collective"
        if not file.startswith("<") and not in_torch and "python3" not in file:
            break
    return "python"


def _is_loader_next(frame: Place) -> bool:
    return frame.name == "__next__" and (frame.file or "").endswith(_LOADER_FILES)


def _normalize(frame: Place, project_root: str | None) -> Place:
    file = frame.file.replace("\\", "/") if frame.file else None
    if file is not None:
        root = project_root.rstrip("/") + "/" if project_root else ""
        if root and file.startswith(root):
            file = file[len(root) :]
        else:
            file = re.sub(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+/", "", file)
    return Place(name=strip_addresses(frame.name), file=file, line=frame.line)


def _break_down(entries: Sequence[_Seen], num_samples: int) -> dict[str, float]:
    """Return the six fractions; ``compute`` is unknown to sampling and stays with Python."""
    data = sum(one.count for one in entries if one.is_data)
    waiting = sum(
        one.count for one in entries if one.function.kind == "collective" and not one.is_data
    )
    python = sum(one.count for one in entries) - data - waiting
    return {
        "compute": 0.0,
        "exposed_communication": waiting / num_samples,
        "memory": 0.0,
        "data": data / num_samples,
        "python": python / num_samples,
        "idle": 1.0 - (data + waiting + python) / num_samples,
    }

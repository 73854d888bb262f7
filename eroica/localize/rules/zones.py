"""What a stack is busy with, told from library frames alone.

A zone is decided by where torch's and Python's own functions stand in the stack, never by the
names a user gave to things. Frames are innermost first throughout.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal

from eroica.records import Place

Zone = Literal[
    "collective",
    "object_collective",
    "barrier",
    "backward",
    "optimizer",
    "forward",
    "ddp",
    "loader",
    "loader_wait",
    "loader_start",
    "compile",
    "checkpoint",
    "logging",
    "gc",
    "anomaly",
    "unpickle",
    "import",
    "user",
    "other",
]

Frames = tuple[Place, ...]
COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"})
LIBRARY_MARKS = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "/lib64/python3",
    "<frozen",
    "<string>",
    "<built-in",
    "<eval_with_key>",
    "/opt/venv/",
)
LIBRARY_ROOTS = (
    *("torch/", "numpy/", "threading.py", "multiprocessing/", "importlib/", "logging/"),
    *("queue.py", "socket.py", "ssl.py", "selectors.py", "json/", "pickle.py", "random.py"),
    *("contextlib.py", "typing.py", "functools.py", "concurrent/", "asyncio/", "copy.py"),
    *("collections/", "traceback.py", "linecache.py", "tracemalloc.py", "gzip.py", "re/"),
    *("enum.py", "abc.py", "weakref.py", "tempfile.py", "shutil.py", "subprocess.py"),
    *("warnings.py", "inspect.py", "runpy.py", "codecs.py", "statistics.py", "ast.py"),
    *("dataclasses.py", "os.py", "posixpath.py", "string.py", "textwrap.py", "heapq.py"),
    *("triton/", "transformers/", "accelerate/", "deepspeed/", "lightning/", "datasets/"),
)
OBJECT_NAMES = frozenset(
    {
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
    }
)
BARRIER_NAMES = frozenset({"barrier", "monitored_barrier"})
COLLECTIVE_NAMES = frozenset(
    {
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor"),
        *("all_gather_coalesced", "_all_gather_base", "broadcast", "reduce", "gather", "scatter"),
        *("reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all"),
        *("all_to_all_single", "send", "recv", "isend", "irecv", "batch_isend_irecv"),
        *("wait", "wait_tensor", "synchronize", "_wait", "all_gather_tensor"),
    }
)
LOGGING_FILES = (
    *("logging/__init__.py", "logging/handlers.py", "torch/utils/tensorboard/", "tensorboardX/"),
    *("wandb/", "mlflow/", "torch/_tensor_str.py", "tqdm/", "rich/", "loguru/", "csv.py"),
    *("comet_ml/", "neptune/", "clearml/", "aim/", "visdom/", "dvclive/", "structlog/"),
)
OPTIMIZER_FILES = (
    *("torch/optim/", "torch_optimizer/", "torchao/optim/", "timm/optim/", "bitsandbytes/optim/"),
    *("apex/optimizers/", "apex/contrib/optimizers/", "deepspeed/runtime/zero/"),
    *("deepspeed/ops/adam/", "deepspeed/ops/lamb/", "deepspeed/ops/lion/"),
    *("fairscale/optim/", "transformer_engine/pytorch/optimizers/", "lion_pytorch/"),
)
SAVING_FILES = ("torch/serialization.py", "safetensors/")
LOADER_FILES = ("torch/utils/data/", "torchdata/")


def has(file: str | None, *parts: str) -> bool:
    """Return whether the path is, or ends or continues with, one of the library parts."""
    if not file:
        return False
    path = file.replace("\\", "/")
    return any(path.startswith(part) or f"/{part}" in path for part in parts)


@lru_cache(maxsize=65536)
def is_library(file: str | None) -> bool:
    """Return whether a file belongs to Python or an installed package, by its path alone."""
    if not file:
        return True
    path = file.replace("\\", "/")
    if any(mark in path for mark in LIBRARY_MARKS):
        return True
    return not path.startswith("/") and path.startswith(LIBRARY_ROOTS)


def project_frames(frames: Iterable[Place], contains: Callable[[str | None], bool]) -> Frames:
    """Return the user's frames, innermost first; comprehensions give way to their function."""
    mine = [f for f in frames if contains(f.file)]
    kept: list[Place] = []
    for position, frame in enumerate(mine):
        outer = mine[position + 1] if position + 1 < len(mine) else None
        if short(frame.name) in COMPREHENSIONS and outer is not None and outer.file == frame.file:
            continue  # the line of its function says as much, under a name people know
        kept.append(frame)
    return tuple(kept)


def short(name: str) -> str:
    """``DataLoader.__next__`` becomes ``__next__``."""
    return name.rsplit(".", 1)[-1]


def _torch_zone(frame: Place) -> Zone | None:
    file, name = frame.file, short(frame.name)
    if has(file, "torch/distributed/"):
        if has(file, "torch/distributed/checkpoint/", "torch/distributed/elastic/"):
            return "checkpoint" if "checkpoint" in (file or "") else None
        if name in OBJECT_NAMES:
            return "object_collective"
        if name in BARRIER_NAMES:
            return "barrier"
        return "collective" if name in COLLECTIVE_NAMES else None
    if has(file, "torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "torch/fx/"):
        compiling = name in ("convert_frame", "_compile", "compile_inner", "compile_fx")
        compiling |= has(file, "torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
        return "compile" if compiling and name != "_fn" else None
    if has(file, "torch/autograd/graph.py", "torch/autograd/__init__.py", "torch/_tensor.py"):
        is_backward = name in ("backward", "_engine_run_backward", "grad")
        return "backward" if is_backward else None
    if has(file, "torch/nn/parallel/distributed.py"):
        return "ddp"
    if has(file, "torch/nn/modules/module.py"):
        return "forward"
    return None


def _loader_zone(frame: Place) -> Zone:
    name = short(frame.name)
    if name in ("_try_get_data", "_get_data"):
        return "loader_wait"
    is_start = name == "__init__" and "dataloader" in (frame.file or "")
    return "loader_start" if is_start else "loader"


@lru_cache(maxsize=65536)
def frame_zone(frame: Place) -> Zone | None:
    """Return what a library frame means for everything it calls, None where it says nothing."""
    file, name = frame.file, short(frame.name)
    if name in ("<built-in function collect>", "<built-in function gc.collect>", "Python GC"):
        return "gc"
    if "built-in method run_backward" in frame.name:
        return "backward"
    if not is_library(file):
        return None
    if has(file, "torch/"):
        zone = _torch_zone(frame)
        if zone is not None:
            return zone
    if has(file, *LOADER_FILES):
        return _loader_zone(frame)
    if has(file, *OPTIMIZER_FILES):
        return "optimizer"
    if has(file, *SAVING_FILES):
        return "checkpoint"
    if has(file, *LOGGING_FILES):
        return "logging"
    if has(file, "multiprocessing/queues.py") and name == "get":
        return "unpickle"
    if has(file, "multiprocessing/reductions.py", "torch/multiprocessing/reductions.py"):
        return "unpickle"
    if has(file, "importlib/") or (file or "").startswith("<frozen importlib"):
        return "import"
    return None


# The first of these that any frame shows is the zone of the stack.
_ORDER: tuple[Zone, ...] = (
    *("compile", "object_collective", "barrier", "collective", "checkpoint", "loader_start"),
    *("loader_wait", "loader", "logging", "gc", "unpickle", "import"),
)


def zone_of(frames: Sequence[Place], kind: str = "python") -> Zone:
    """Return the zone of one stack.

    Inside the training phases (backward, optimizer, forward) the outermost decides, because all
    that they call is their work; a logger or a collective inside them still shows as itself.
    """
    if kind == "collective":
        return "collective"
    seen: list[Zone] = []
    for frame in frames:
        zone = frame_zone(frame)
        if zone is not None:
            seen.append(zone)
    if "anomaly" not in seen and _is_anomaly(frames):
        return "anomaly"
    for zone in _ORDER:
        if zone in seen:
            return zone
    for outermost in reversed(seen):
        if outermost in ("backward", "optimizer", "ddp", "forward"):
            return "forward" if outermost == "ddp" and "forward" in seen else outermost
    if kind in ("op", "kernel", "memory") and not any(f.file for f in frames):
        return "other"
    return "user"


def _is_anomaly(frames: Sequence[Place]) -> bool:
    """Anomaly mode formats the stack at every forward operation, from C++ out of nowhere."""
    for position, frame in enumerate(frames):
        if has(frame.file, "traceback.py") and short(frame.name) in ("format_stack", "extract"):
            outer = frames[position + 1 :]
            caller = next((f for f in outer if not has(f.file, "traceback.py")), None)
            return caller is not None and not has(caller.file, "logging/")
        if not has(frame.file, "traceback.py", "linecache.py", "tokenize.py", "codecs.py"):
            return False
    return False

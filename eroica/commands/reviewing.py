"""``eroica review``: the terminal app, or a plain prompt where there is no screen."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.commands.incidents import IncidentArgument
from eroica.errors import InputError
from eroica.incident import IncidentFolder
from eroica.records import Patch, Rehearsal

if TYPE_CHECKING:
    from eroica.review.session import Session


ENDS_WITHIN_S = 5.0
"""How long a rehearsal that was left has to end its processes."""


def register(app: typer.Typer) -> None:
    app.command()(review)


def review(
    reference: IncidentArgument = None,
    source: Annotated[Path | None, typer.Option(help="The job's source folder.")] = None,
    verify: Annotated[str | None, typer.Option(help="CMD that r rehearses with.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Asked anew by c: openai:NAME, replay:FILE ...")
    ] = None,
) -> int:
    """Decide on the proposals of an incident, hunk by hunk.

    Example: eroica review
    """
    from eroica.commands.fixing import source_root_of

    folder = incidents.find(reference)
    root = source_root_of(source, folder.read_incident())
    command = output.split_words("--verify", verify) if verify is not None else None
    return review_on_terminal(folder, root, verify=command, model=model)


def review_on_terminal(
    folder: IncidentFolder,
    root: Path,
    *,
    verify: list[str] | None = None,
    model: str | None = None,
    no_llm: bool = False,
) -> int:
    """Open the app on a terminal; elsewhere a prompt, or the diffs where nobody can answer."""
    from eroica.review.session import Session

    session = Session.load(folder)
    if output.is_interactive() and os.environ.get("EROICA_PLAIN") != "1":
        again = None if no_llm else asks_again(folder, root, model)
        return _app(session, folder, root, verify, again)
    if sys.stdin.isatty() or os.environ.get("EROICA_PLAIN") == "1":
        return _prompt(session, folder, root)
    _show_diffs(session, folder)
    return 0


def _app(
    session: "Session",
    folder: IncidentFolder,
    root: Path,
    verify: list[str] | None,
    again: Callable[[Patch, str], list[Patch]] | None,
) -> int:
    from eroica import fix as room
    from eroica.detecting import detector_for
    from eroica.fix.apply import user_name
    from eroica.fix.watchdog import Watcher
    from eroica.review.app import REHEARSAL, ReviewApp
    from eroica.review.beside import join

    called_off = threading.Event()

    def rehearse(patch: Patch, tell: Callable[[str], None]) -> Rehearsal:
        assert verify is not None
        symptom, watcher = session.incident.symptom, Watcher(tell, called_off)
        detector = detector_for(session.incident)
        return room.rehearse(
            patch, verify, root, symptom=symptom, watcher=watcher, detector=detector
        )

    app = ReviewApp(
        session,
        diagnoses=folder.read_diagnoses(),
        write=lambda decided: decided.write(root, folder, room.apply, user_name()),
        rehearse=rehearse if verify else None,
        regenerate=again,
        save=lambda decided: decided.save(folder),
        prompt_cost=lambda: prompt_cost(folder),
        is_dark=is_dark_terminal(),
    )
    try:
        was_written = app.run() == "written"
    finally:
        called_off.set()
        join(REHEARSAL, ENDS_WITHIN_S)
    _say_result(was_written, session, folder)
    return 0


def asks_again(
    folder: IncidentFolder, root: Path, name: str | None
) -> Callable[[Patch, str], list[Patch]] | None:
    """Return what asks the model for another patch; None where no model is configured.

    While the app has the screen nobody can be asked for consent, so it must stand already.
    """
    from eroica.explain.model import is_configured

    if name is None and not is_configured():
        return None

    def ask(patch: Patch, comment: str) -> list[Patch]:
        from eroica.commands.asking import patches_from_model
        from eroica.explain.asking import consented
        from eroica.explain.model import is_loopback, resolve

        incident = folder.read_incident()
        if incident.causes and patch.cause != incident.causes[0].id:
            raise InputError(
                "a model is asked about the first cause only",
                f"the patch is for {patch.cause}",
                "edit the hunk yourself: e",
            )
        chosen = resolve(name)
        if not (is_loopback(chosen.endpoint) or consented(chosen.endpoint)):
            raise InputError(
                f"nothing is sent to {chosen.endpoint}",
                "it is not this machine, and nobody agreed",
                f"start with EROICA_SEND_TO={chosen.endpoint}",
            )
        about = f"{comment}\n\nThe reviewer says so about this patch:\n\n{patch.diff}"
        made = patches_from_model(
            folder, incident, root, name, progress=lambda text: None, comment=about
        )
        taken = {one.id for one in folder.read_patches()}
        return [
            msgspec.structs.replace(one, id=folder.free_patch_id("M")) if one.id in taken else one
            for one in made
        ]

    return ask


def prompt_cost(folder: IncidentFolder) -> str:
    """What the model was asked so far, else how large its prompt would be."""
    from eroica.explain.transcript import used

    usage, models = used(folder.transcript_path)
    if usage.calls:
        return f"{', '.join(models)}: {usage}"
    from eroica.explain.prompts import prompt_for

    size = len(prompt_for(folder)) // 4
    return f"no model was asked; the prompt would be about {size} tokens (eroica prompt)"


def is_dark_terminal() -> bool:
    """False where the terminal says its background is light; nothing said counts as dark."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background not in ("7", "15")


def _prompt(session: "Session", folder: IncidentFolder, root: Path) -> int:
    from eroica import fix as room
    from eroica.fix.apply import user_name
    from eroica.review.prompt import review_by_prompt

    console = output.stdout()
    wanted = review_by_prompt(
        session, ask=input, show=lambda text: console.print(text, markup=False)
    )
    if wanted:
        session.write(root, folder, room.apply, user_name())
    _say_result(wanted, session, folder)
    return 0


def _say_result(was_written: bool, session: "Session", folder: IncidentFolder) -> None:
    if was_written:
        names = sorted({edit.path for patch in session.result() for edit in patch.edits})
        output.say(f"written: {', '.join(names)}")
        output.say("next    eroica undo   takes it back")
    else:
        output.say(f"nothing was written; eroica review {folder.id} goes on")


def _show_diffs(session: "Session", folder: IncidentFolder) -> None:
    from eroica.report import terminal

    console = output.stdout()
    for patch in session.patches:
        terminal.print_patch(console, patch)
    if not session.patches:
        output.say(f"{folder.id} has no proposal; eroica fix {folder.id} makes them")
    terminal.print_next(
        console, [(f"eroica fix {folder.id} --accept all --apply", "writes them without asking")]
    )

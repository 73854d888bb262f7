"""The glue between an incident and a language model: explanation and patch, each optional.

Whatever goes wrong with a model ends as one line on stderr; the rule-written text and the
fixers' patches are there already.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from eroica.commands import output
from eroica.gathering import Progress
from eroica.incident import IncidentFolder
from eroica.records import Diagnosis, Incident, Patch
from eroica.text import visible

if TYPE_CHECKING:
    from eroica.explain.asking import Asked
    from eroica.explain.model import ChatModel
    from eroica.explain.privacy import Share

MAX_REPAIRS = 2


def explain_with_model(
    folder: IncidentFolder,
    model: str | None,
    *,
    share: str = "functions",
    source: Path | None = None,
    progress: Progress,
    quiet: bool = False,
) -> "Diagnosis | None":
    """Ask the model to explain the first cause and keep its checked answer in the incident.

    None where there is no answer to use; what the rules wrote stays then, with a line that says
    why. Ctrl-C ends the wait for the model, not the command.
    """
    from eroica.explain import ask
    from eroica.explain.model import Limits, resolve

    chosen = resolve(model)
    if not folder.read_incident().causes:
        return None
    progress(f"asking {chosen.name} to explain, at most {Limits.of().seconds:.0f} s")
    show = None if quiet or not sys.stderr.isatty() else _to_stderr
    try:
        asked = ask(
            folder,
            chosen,
            "explain",
            share=share_of(share),
            source_root=str(source.resolve()) if source else None,
            on_token=show,
            may_send=may_send,
        )
    except KeyboardInterrupt:
        output.note("not waiting for the model any longer")
        return None
    _tell(asked)
    rules = folder.read_diagnoses()
    if not asked.is_answered:
        note = (f"written by rule: {asked.reason}",)
        rules = [msgspec.structs.replace(rules[0], notes=note), *rules[1:]] if rules else rules
        folder.write_diagnoses(rules)
        return None
    answered = asked.diagnoses[0]
    others = [one for one in rules if one.cause != answered.cause]
    folder.write_diagnoses([answered, *others])
    return answered


def patches_from_model(
    folder: IncidentFolder,
    incident: Incident,
    root: Path,
    model: str | None,
    *,
    progress: Progress,
    comment: str = "",
) -> list[Patch]:
    """Ask the model for a patch where one is configured; at most two repair turns."""
    from eroica.explain.model import is_configured, resolve

    if (model is None and not is_configured()) or not _has_code_fault(incident):
        return []
    from eroica.explain import ask, repair
    from eroica.fix import Refusal, from_answer

    chosen: ChatModel = resolve(model)
    progress(f"asking {chosen.name} for a patch")
    patch_id = folder.free_patch_id("M")
    first = incident.causes[0]
    asked = ask(folder, chosen, "patch", cause=first.id, source_root=str(root), may_send=may_send)
    if comment:
        asked = repair(folder, chosen, asked, [f"a reviewer says: {comment}"])
    for turn in range(MAX_REPAIRS + 1):
        if not asked.is_answered:
            break
        made = from_answer(
            asked.text,
            incident,
            root,
            cause=first,
            allowed=asked.pack.files if asked.pack is not None else None,
            source=f"model {chosen.name}",
            patch_id=patch_id,
            why=asked.why,
            behaviour=asked.behavior,
        )
        if not isinstance(made, Refusal):
            _tell(asked)
            return [made]
        asked.reason = "its patch was refused: " + "; ".join(made.reasons)
        if turn < MAX_REPAIRS:
            progress(f"asking {chosen.name} to mend its patch")
            asked = repair(folder, chosen, asked, [*made.reasons, *made.nearest])
    _tell(asked)
    return []


def print_prompt(
    folder: IncidentFolder, share: str, purpose: str = "explain", source: Path | None = None
) -> None:
    """Print to the byte what a model would be sent, and send nothing."""
    from eroica.explain.prompts import prompt_for

    root = str(source.resolve()) if source else None
    text = prompt_for(folder, purpose, share=share_of(share), source_root=root)
    output.print_bytes(text.encode())


def may_send(endpoint: str) -> bool:
    """Ask the person once before text goes to another machine; nobody there means no."""
    from eroica.explain.asking import consented

    if consented(endpoint):
        return True
    if not output.is_interactive():
        return False
    import typer

    with output.asking():
        return typer.confirm(
            f"Send the evidence (names and paths replaced, secrets removed) to {endpoint}?",
            default=False,
            err=True,
        )


def _has_code_fault(incident: Incident) -> bool:
    return bool(incident.causes) and incident.causes[0].action in ("patch", "investigate")


def _to_stderr(text: str) -> None:
    """Show a piece of what a model says; nothing in it moves the cursor."""
    output.clear_spinner()
    sys.stderr.write(visible(text))
    sys.stderr.flush()


def share_of(name: str) -> "Share":
    from typing import cast, get_args

    from eroica.errors import InputError
    from eroica.explain.privacy import Share

    if name not in get_args(Share):
        raise InputError(
            f"--share {name} is unknown",
            f"expected {', '.join(get_args(Share))}",
            next_step="eroica prompt --share names",
        )
    return cast("Share", name)


def _tell(asked: "Asked") -> None:
    output.clear_spinner()
    output.note(f"{asked.model}: {asked.usage}")
    if asked.reason:
        output.note(f"the model's answer is not used: {asked.reason}")

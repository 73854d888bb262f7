"""``eroica prompt``: the evidence as text, for an assistant."""

from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.commands.incidents import IncidentArgument


def register(app: typer.Typer) -> None:
    app.command()(prompt)


def prompt(
    reference: IncidentArgument = None,
    purpose: Annotated[str, typer.Option("--for", help="explain or patch.")] = "patch",
) -> int:
    """Print the evidence of an incident as text to paste into a coding assistant.

    Example: eroica prompt --for patch | pbcopy
    """
    from eroica.explain.prompts import prompt_for

    output.print_bytes(prompt_for(incidents.find(reference), purpose).encode())
    return 0

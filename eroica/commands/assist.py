"""``eroica prompt``, ``mcp`` and ``plugin``: the faces for coding assistants."""

from pathlib import Path
from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.commands.incidents import IncidentArgument
from eroica.errors import InputError
from eroica.text import visible

UserOption = Annotated[bool, typer.Option("--user/--project", help="For you, or this folder.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")]


def register(app: typer.Typer) -> None:
    app.command()(prompt)
    app.command()(mcp)
    plugin = typer.Typer(
        help="Put eroica into a coding assistant. Example: eroica plugin install claude",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    plugin.command()(install)
    plugin.command()(uninstall)
    app.add_typer(plugin, name="plugin")


def prompt(
    reference: IncidentArgument = None,
    purpose: Annotated[str, typer.Option("--for", help="explain or patch.")] = "patch",
    cause: Annotated[str | None, typer.Option(help="Which cause; the first.")] = None,
    share: Annotated[
        str, typer.Option(help="What is in it: none, names, functions or files.")
    ] = "functions",
    source: Annotated[Path | None, typer.Option(help="The job's source folder.")] = None,
) -> int:
    """Print the evidence of an incident as text to paste into a coding assistant.

    It is exactly what a model would be sent: names replaced, secrets removed.

    Example: eroica prompt --for patch | pbcopy
    """
    from eroica.commands.asking import share_of
    from eroica.explain.prompts import prompt_for

    text = prompt_for(
        incidents.find(reference),
        purpose,
        cause=cause,
        share=share_of(share),
        source_root=str(source) if source else None,
    )
    output.print_bytes(text.encode())
    return 0


def mcp(
    http: Annotated[int | None, typer.Option(help="Serve on this loopback port.")] = None,
    root: Annotated[
        list[Path] | None, typer.Option(help="A folder the assistant may read; this one.")
    ] = None,
    allow_rehearse: Annotated[
        str | None, typer.Option(help="Let it rehearse patches with this command.")
    ] = None,
) -> int:
    """Serve incidents to a coding assistant over the Model Context Protocol.

    Example: eroica mcp
    """
    from eroica.assistants.start import load
    from eroica.errors import MissingExtra

    if allow_rehearse is not None:
        output.split_words("--allow-rehearse", allow_rehearse)
    try:
        server = load(root or [Path.cwd()], rehearsal=allow_rehearse)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        raise MissingExtra("eroica mcp", "mcp") from error
    if http is None:
        server.run()
    else:
        output.note("every user of this machine can ask this port; without --http only you can")
        server.run("streamable-http", host="127.0.0.1", port=http)
    return 0


def install(
    host: Annotated[str, typer.Argument(help="claude, cursor, vscode or codex.")],
    user: UserOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Add the MCP server and the skill to an assistant's files; what is there is kept.

    Example: eroica plugin install claude --dry-run
    """
    return _change(host, user=user, dry_run=dry_run, remove=False)


def uninstall(
    host: Annotated[str, typer.Argument(help="claude, cursor, vscode or codex.")],
    user: UserOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Take the MCP server and the skill out again.

    Example: eroica plugin uninstall claude
    """
    return _change(host, user=user, dry_run=dry_run, remove=True)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # a user id without a passwd entry, as in many containers
        raise InputError("there is no home folder", str(error), "set HOME, or --project") from error


def _change(host: str, *, user: bool, dry_run: bool, remove: bool) -> int:
    from eroica.assistants import install as room

    project = Path.cwd()
    home = _home() if user else project
    changes = room.plan(host, user=user, remove=remove, project=project, home=home)
    console = output.stdout()
    for change in changes:
        verb = "remove" if change.after is None else "write"
        console.print(f"{'would ' if dry_run else ''}{verb} {change.path}", markup=False)
        if dry_run and change.after is not None:
            console.print(visible(change.after), markup=False)
    if not changes:
        console.print("nothing to change", markup=False)
    if not dry_run:
        room.carry_out(changes)
    return 0

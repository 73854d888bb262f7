"""``eroica doctor`` and ``fixers``: what works here, and what there is to read."""

from typing import TYPE_CHECKING, Annotated

import typer

from eroica.commands import output

if TYPE_CHECKING:
    from eroica.fix.context import Fixer


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(fixers)
    app.callback(invoke_without_command=True)(version)


def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Troubleshoot distributed PyTorch training: which rank, which function, why, the patch."""
    if show:
        import eroica

        output.stdout().print(f"eroica {eroica.__version__}", markup=False)
        raise typer.Exit


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Say what works on this machine, and how to get the rest.

    Example: eroica doctor
    """
    from eroica.doctor import abilities, examine
    from eroica.incident import encode

    checks = examine()
    able = abilities(checks)
    if as_json:
        output.print_bytes(encode({"schema": 1, "checks": checks, "abilities": able}))
        return 0
    for check in checks:
        output.say(f"{check.state:<8} {check.name:<15} {check.found}")
        if check.remedy:
            output.say(f"{'':<24} -> {check.remedy}")
    output.say("")
    output.say("so here you can")
    for one in able:
        verb = {"ok": "yes", "limited": "in part", "missing": "no"}[one.state]
        because = f"   see {one.because}" if one.because else ""
        output.say(f"{verb:<8} {one.name:<22} {one.command}{because}")
    return 0


def fixers(
    code: Annotated[str | None, typer.Argument(help="A fixer's code, e.g. COL001.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the fixer's examples, or those of all.")
    ] = False,
) -> int:
    """List the fixers, or print the documentation of one.

    Example: eroica fixers COL001
    """
    import inspect

    from eroica.fix.registry import find_fixer, load_fixers, title

    chosen = [find_fixer(code)] if code is not None else list(load_fixers().values())
    if check:
        return _check_fixers(chosen)
    console = output.stdout()
    for fixer in chosen:
        text = inspect.getdoc(fixer) or ""
        shown = text if code is not None else f"{fixer.CODE}  {title(fixer)}"
        console.print(shown, markup=False)
    return 0


def _check_fixers(chosen: "list[Fixer]") -> int:
    """Print what is wrong with fixers; the exit code is 3 where something is."""
    from eroica.fix.examples import problems

    found = [f"{fixer.CODE}  {problem}" for fixer in chosen for problem in problems(fixer)]
    for line in found:
        output.stdout().print(line, markup=False)
    examples = sum(len(fixer.FIXES) + len(fixer.KEEPS) for fixer in chosen)
    if not found:
        output.say(f"{examples} examples of {len(chosen)} fixers: all as they should be")
    return 3 if found else 0

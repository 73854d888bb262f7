"""``eroica doctor`` and ``fixers``: what works here, and what there is to read."""

from typing import Annotated

import typer

from eroica.commands import output


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


def doctor() -> int:
    """Say what works on this machine, and how to get the rest.

    Example: eroica doctor
    """
    from eroica.doctor import examine

    for check in examine():
        mark = {"ok": "ok     ", "missing": "missing", "limited": "limited"}[check.state]
        output.say(f"{mark}  {check.name:<22} {check.found}")
        if check.remedy:
            output.say(f"         {'':<22} -> {check.remedy}")
    return 0


def fixers(
    code: Annotated[str | None, typer.Argument(help="A fixer's code, e.g. COL001.")] = None,
) -> int:
    """List the fixers, or print the documentation of one.

    Example: eroica fixers COL001
    """
    import inspect

    from eroica.errors import InputError
    from eroica.fix.registry import load_fixers

    console = output.stdout()
    known = load_fixers()
    if code is None:
        for name, fixer in sorted(known.items()):
            title = (inspect.getdoc(fixer) or "").splitlines()[0].removeprefix(name).strip()
            console.print(f"{name}  {title}", markup=False)
        return 0
    if code not in known:
        raise InputError(f"no fixer {code}", f"there are: {', '.join(sorted(known))}")
    console.print(inspect.getdoc(known[code]) or "", markup=False)
    return 0

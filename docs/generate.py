"""Write the generated pages of docs/, or with --check say which are stale.

    python docs/generate.py [--check]

docs/commands.md comes from each command's --help, docs/fixers.md from the fixers' own files,
docs/parameters.md from the code that holds each number.
"""

import sys
from pathlib import Path

import parameters

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Made by docs/generate.py; edit the source of what it describes instead. -->\n"


def commands() -> str:
    """Every command with its --help, at a fixed width."""
    import typer.main

    from eroica.cli import app

    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = [NOTE, "# Commands\n", "`eroica COMMAND --help` prints the same.\n"]
    parts += [f"## eroica {name}\n\n```\n{help_of(name)}\n```\n" for name in names]
    return "\n".join(parts)


def help_of(name: str) -> str:
    """What ``eroica NAME --help`` prints 100 columns wide."""
    from typer.testing import CliRunner

    from eroica.cli import app

    wide = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = CliRunner(env=wide).invoke(app, [name, "--help"], prog_name="eroica")
    if done.exit_code:
        raise RuntimeError(f"eroica {name} --help ended with {done.exit_code}: {done.output}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def fixers() -> str:
    """Every fixer's documentation and its tested examples."""
    from eroica.fix.docs import page

    return page()


def main() -> int:
    stale = []
    for name, make in (
        ("commands.md", commands),
        ("fixers.md", fixers),
        ("parameters.md", parameters.page),
    ):
        path, text = ROOT / "docs" / name, make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if stale:
        verb = "is stale" if "--check" in sys.argv else "written"
        print("\n".join(f"docs/{name} {verb}" for name in stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())

"""``eroica list``, ``report``: commands on saved incidents."""

from pathlib import Path
from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output

IncidentArgument = Annotated[
    str | None, typer.Argument(help="Id, part of an id, or folder; the newest if left out.")
]


def register(app: typer.Typer) -> None:
    app.command(name="list")(list_incidents)
    app.command()(report)


def list_incidents(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False,
) -> int:
    """List the incidents of this folder, oldest first.

    Example: eroica list
    """
    folders = incidents.list_folders()
    records = [(folder, folder.read_incident()) for folder in folders]
    if as_json:
        rows = [
            {
                "id": folder.id,
                "symptom": record.symptom,
                "category": record.causes[0].category if record.causes else None,
                "headline": record.headline,
            }
            for folder, record in records
        ]
        output.print_bytes(incidents.encode(rows))
        return 0
    console = output.stdout()
    if not records:
        console.print(f"no incident in {incidents.store()}", markup=False)
        return 0
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "symptom", "category", ""):
        table.add_column(name, no_wrap=name == "id")
    for folder, record in records:
        category = record.causes[0].category if record.causes else ""
        table.add_row(folder.id, record.symptom, category, Text(record.headline))
    console.print(table)
    return 0


def report(
    reference: IncidentArgument = None,
    format: Annotated[str, typer.Option("--format", "-f", help="html, md or json.")] = "html",
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; - for stdout.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> int:
    """Write the report of an incident for people who were not here.

    Example: eroica report --format md -o -
    """
    from eroica.errors import InputError

    folder = incidents.find(reference)
    data, path = _render(folder, format)
    if out is not None and str(out) == "-":
        output.print_bytes(data)
        return 0
    target = out or path
    try:
        incidents.write_atomic(target, data)
    except OSError as error:
        raise InputError(f"cannot write {target}", str(error)) from error
    output.stdout().print(f"{target}", markup=False)
    if open_it:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    return 0


def _render(folder: incidents.IncidentFolder, format: str) -> tuple[bytes, Path]:
    from eroica.errors import InputError

    if format == "json":
        return folder.incident_bytes(), folder.path / "incident.json"
    if format == "md":
        from eroica.report.markdown import render as render_markdown

        return render_markdown(folder).encode(), folder.report_markdown_path
    if format == "html":
        from eroica.report.html import render as render_html

        return render_html(folder).encode(), folder.report_html_path
    raise InputError(f"unknown format {format!r}", "expected html, md or json")

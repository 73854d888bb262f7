"""``eroica list``, ``report``: commands on saved incidents."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.errors import EroicaError, InputError
from eroica.records import Incident

IncidentArgument = Annotated[
    str | None, typer.Argument(help="Id, part of an id, or folder; the newest if left out.")
]


def register(app: typer.Typer) -> None:
    app.command(name="list")(list_incidents)
    app.command()(report)
    app.command()(compare)
    app.command()(bundle)


def list_incidents(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False,
) -> int:
    """List the incidents of this folder, oldest first.

    Example: eroica list
    """
    folders = incidents.list_folders()
    read, broken = _read_all(folders)
    if as_json:
        output.print_bytes(incidents.encode([_row(folder, read, broken) for folder in folders]))
        return 0
    if not folders:
        output.say(f"no incident in {incidents.store()}")
        return 0
    from eroica.report import compare as compare_room

    width = max(len(folder.id) for folder in folders)
    for folder in folders:
        row = _row(folder, read, broken)
        what = row["headline"] if folder.id in read else row["error"]
        output.say(f"{folder.id:<{width}}  {row['symptom'] or 'unreadable':<9}  {what}")
    for again in compare_room.group([folder for folder in folders if folder.id in read]):
        category, place = again.fingerprint
        if len(again.folders) > 1 and place:
            output.say(f"{category} at {place}: {again.text}")
    return 0


def _read_all(
    folders: list[incidents.IncidentFolder],
) -> tuple[dict[str, Incident], dict[str, str]]:
    """The incidents by id, and of those that cannot be read the reason."""
    read: dict[str, Incident] = {}
    broken: dict[str, str] = {}
    for folder in folders:
        try:
            read[folder.id] = folder.read_incident()
        except EroicaError as error:
            broken[folder.id] = str(error)
    return read, broken


def _row(
    folder: incidents.IncidentFolder, read: dict[str, Incident], broken: dict[str, str]
) -> dict[str, str | None]:
    record = read.get(folder.id)
    row: dict[str, str | None] = {
        "id": folder.id,
        "symptom": record.symptom if record else None,
        "category": record.causes[0].category if record and record.causes else None,
        "headline": record.headline if record else "",
    }
    return row if record else row | {"error": broken[folder.id]}


def report(
    reference: IncidentArgument = None,
    format: Annotated[str, typer.Option("--format", "-f", help="html, md or json.")] = "html",
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; - for stdout.")
    ] = None,
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="Replace names; only you can put them back.")
    ] = False,
    gpu_hour: Annotated[
        float | None, typer.Option(help="Price of a GPU-hour, for the cost of it.", min=0)
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> int:
    """Write the report of an incident for people who were not here.

    Example: eroica report --format md -o -
    """
    folder = incidents.find(reference)
    data, path = _render(folder, format, anonymize=anonymize, price=gpu_hour)
    if out is not None and str(out) == "-":
        output.print_bytes(data)
        return 0
    target = out or path
    output.write(target, data)
    output.say(f"{target}")
    if open_it:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    return 0


def compare(
    before: Annotated[str, typer.Argument(help="Incident, or traces of the job before.")],
    after: Annotated[str, typer.Argument(help="Incident, or traces of the job after.")],
    format: Annotated[str, typer.Option("--format", "-f", help="md or html.")] = "md",
    out: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")] = None,
) -> int:
    """Put two incidents, or the traces of two runs, side by side.

    Example: eroica compare traces-before/ traces-after/
    """
    if format not in ("md", "html"):
        raise InputError(
            f"unknown format {format!r}",
            "expected md or html",
            next_step="eroica compare A B --format md",
        )
    from eroica.report import compare as room

    data = room.compare(_incident_of(before), _incident_of(after), format).encode()
    if out is None:
        output.print_bytes(data)
    else:
        output.write(out, data)
    return 0


def _incident_of(reference: str) -> incidents.IncidentFolder:
    path = Path(reference)
    if path.exists() and not incidents.is_incident(path):
        from eroica import pipeline

        with output.progress() as show:
            return pipeline.diagnose_paths([path], progress=show)
    return incidents.find(reference)


def bundle(
    reference: IncidentArgument = None,
    share: Annotated[
        str, typer.Option(help="all (names replaced) or patterns (numbers and hashes only).")
    ] = "all",
    out: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--reveal",
            metavar="FILE",
            help="Put your names back into an answer to a bundle; - reads it from stdin.",
        ),
    ] = None,
) -> int:
    """Pack an incident to send it to someone; names are replaced and secrets removed.

    Example: eroica bundle --share patterns
    """
    from eroica.report.bundle import bundle as pack

    folder = incidents.find(reference)
    if answer is not None:
        return _reveal(folder, answer, out)
    with output.writing(out or folder.path.parent):
        made = pack(folder, out, share=share)
    output.say(str(made))
    return 0


def _reveal(folder: incidents.IncidentFolder, answer: str, out: Path | None) -> int:
    """Write what someone answered to a bundle, with the owner's names in it."""
    from eroica.report.bundle import reveal

    try:
        data = sys.stdin.buffer.read() if answer == "-" else Path(answer).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {answer}", str(error), "name the file with the answer, or - for stdin"
        ) from error
    text = reveal(folder, data.decode("utf-8", errors="replace"))
    if out is None or str(out) == "-":
        output.print_bytes(text.encode())
    else:
        output.write(out, text.encode())
        output.say(str(out))
    return 0


def _render(
    folder: incidents.IncidentFolder,
    format: str,
    *,
    anonymize: bool = False,
    price: float | None = None,
) -> tuple[bytes, Path]:
    from eroica.report.content import Options

    if format == "json":
        if not anonymize:
            return folder.incident_bytes(), folder.path / "incident.json"
        from eroica.report.anonymize import anonymized
        from eroica.report.material import load

        record = anonymized(folder, load(folder)).incident
        return incidents.encode(record), folder.path / "report.json"
    if format == "md":
        from eroica.report.markdown import render as render_markdown

        options = Options(pictures=False, anonymize=anonymize, price_per_gpu_hour=price)
        return render_markdown(folder, options).encode(), folder.report_markdown_path
    if format == "html":
        from eroica.report.html import render as render_html

        options = Options(anonymize=anonymize, price_per_gpu_hour=price)
        return render_html(folder, options).encode(), folder.report_html_path
    raise InputError(
        f"unknown format {format!r}",
        "expected html, md or json",
        next_step="eroica report --format html",
    )

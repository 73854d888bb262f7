"""What an assistant may know: incidents by id, evidence, sources; secrets and users blotted out."""

import json
from pathlib import Path
from typing import TypeVar

import msgspec

from eroica import incident as incidents
from eroica.assistants import answers
from eroica.assistants.roots import Roots
from eroica.errors import EroicaError, InputError
from eroica.explain.privacy import redact_all
from eroica.incident import IncidentFolder

T = TypeVar("T")
MAX_LINES = 1000


def find(name: str) -> IncidentFolder:
    """Return the incident of this id, or unique part of one; ``latest`` is the newest.

    Unlike on the command line a path names none: an assistant reads and writes incidents of this
    folder's store only, and a link in the store leads nowhere.
    """
    store = incidents.store().resolve()
    known = [one for one in incidents.list_folders() if one.path.resolve().parent == store]
    if not known:
        raise InputError(
            "no incident found",
            next_step="use diagnose with a path of traces",
            found=f"looked in {store}",
        )
    if name == "latest":
        return known[-1]
    exact = [one for one in known if one.id == name]
    matches = exact or [one for one in known if name and name in one.id]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(one.id for one in (matches or known)[-5:])
    what = "fits more than one incident" if matches else "is no incident"
    raise InputError(
        f"{name!r} {what}", f"there are: {names}", next_step="list_incidents names them all"
    )


class Reader:
    """Answers for a server's tools and resources, each cleaned before it leaves."""

    def __init__(self, allowed: Roots) -> None:
        self.allowed = allowed

    def list_incidents(self, limit: int) -> answers.IncidentList:
        folders = incidents.list_folders()
        rows = []
        for folder in reversed(folders[-limit:]):
            try:
                rows.append(answers.row(folder))
            except EroicaError as error:
                rows.append(answers.IncidentRow(folder.id, "", "", f"unreadable: {error}", ""))
        return self.cleaned(answers.IncidentList(rows, len(folders)))

    def summary(self, folder: IncidentFolder) -> answers.IncidentSummary:
        return self.cleaned(answers.summary(folder.read_incident(), folder.read_patches()))

    def evidence(self, name: str, finding: str | None, page: int) -> answers.Evidence:
        return self.cleaned(answers.evidence(find(name).read_incident(), finding, page))

    def source(self, path: str, first_line: int, last_line: int) -> answers.SourceText:
        real, text = self.allowed.read_source(path)
        lines = self.allowed.clean(text).splitlines()
        last = min(last_line, len(lines), first_line + MAX_LINES - 1)
        shown = [f"{n:>5}  {lines[n - 1]}" for n in range(first_line, last + 1)]
        where = self.allowed.clean(str(real))
        return answers.SourceText(where, first_line, last, len(lines), "\n".join(shown))

    def report(self, name: str) -> str:
        from eroica.report.markdown import render

        return self.allowed.clean(render(find(name)))

    def record(self, name: str) -> str:
        """The whole record as JSON."""
        plain = json.loads(find(name).incident_bytes())
        return incidents.encode(redact_all(plain, self.allowed.clean)).decode()

    def diff(self, name: str, patch: str) -> str:
        known = {one.id: one for one in find(name).read_patches()}
        if patch not in known:
            raise InputError(
                f"{name} has no patch {patch!r}",
                f"there are: {', '.join(known)}",
                next_step="get_incident lists its patches",
            )
        return self.allowed.clean(known[patch].diff)

    def prompt(self, name: str, purpose: str) -> str:
        """What a model would be sent of an incident, with source of the allowed folders alone."""
        from eroica.explain.prompts import prompt_for

        folder = find(name)
        return prompt_for(folder, purpose, source_root=str(self.root_of(folder)))

    def root_of(self, folder: IncidentFolder) -> Path:
        """The job's project if it may be read, else the first allowed folder."""
        recorded = folder.read_incident().job.source_root
        if recorded is not None and self.allowed.holds(Path(recorded).resolve()):
            return Path(recorded)
        return self.allowed.folders[0]

    def cleaned(self, answer: T) -> T:
        """Return the same answer without secrets and users."""
        plain = redact_all(msgspec.to_builtins(answer), self.allowed.clean)
        return msgspec.convert(plain, type(answer))

"""Prompts: flat jinja2 templates, rendered strictly, overridable by a folder of the user's.

A file in ``$EROICA_PROMPTS`` (or the ``folder`` given) replaces the one of the same name that
ships; the rest stay. An undefined variable is an error, never an empty string.
"""

import hashlib
import logging
import os
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eroica.errors import EroicaError, InputError
from eroica.explain.evidence import DEFAULT_BUDGET, Pack, gather
from eroica.explain.privacy import Pseudonyms, Share
from eroica.files import may_be_patched
from eroica.incident import IncidentFolder
from eroica.records import FAMILY, Cause, Incident

if TYPE_CHECKING:
    import jinja2

    from eroica.columns import RankPatterns

_LOG = logging.getLogger(__name__)
Purpose = Literal["explain", "patch", "narrative"]
PURPOSES: tuple[Purpose, ...] = ("explain", "patch", "narrative")

_FAMILY_PROMPTS = {
    "collective": "deadlock",
    "lock": "deadlock",
    "process": "deadlock",
    "wait": "deadlock",
    "communication": "communication",
    "host": "host",
    "data": "data",
    "compute": "host",
    "environment": "hardware",
}
_CATEGORY_PROMPTS = {"gc_pause": "gc", "straggler_compute": "hardware"}


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready to be sent: nothing telling is left in it."""

    purpose: Purpose
    system: str
    user: str
    category: str
    source_sha256: str
    fence: str

    @property
    def text(self) -> str:
        """Both parts as one text, for pasting."""
        return f"{self.system}\n\n{self.user}"

    @property
    def sha256(self) -> str:
        """Hash of the prompt without its random fence."""
        return hashlib.sha256(self.text.replace(self.fence, "").encode()).hexdigest()


def render(template: str, *, folder: Path | None = None, **values: object) -> str:
    """Render ``template`` (without ``.j2``); InputError where it is broken or lacks a value."""
    import jinja2

    environment = _environment(str(folder or os.environ.get("EROICA_PROMPTS") or ""))
    try:
        text = environment.get_template(f"{template}.j2").render(**values)
    except jinja2.UndefinedError as error:
        raise InputError(
            f"prompt {template}.j2 lacks a value",
            str(error),
            next_step="compare the template in EROICA_PROMPTS with the one in prompts/",
        ) from error
    except jinja2.TemplateNotFound as error:
        raise InputError(
            f"there is no prompt {error.name}",
            found="neither EROICA_PROMPTS nor prompts/ holds it",
            next_step="unset EROICA_PROMPTS",
        ) from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or error.name}, line {error.lineno}"
        raise InputError(
            f"prompt {where} is no template",
            str(error.message),
            next_step="mend it, or unset EROICA_PROMPTS",
        ) from error
    return _tidy(text)


@lru_cache(maxsize=8)
def _environment(folder: str) -> "jinja2.Environment":
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    loaders: list[jinja2.BaseLoader] = [jinja2.PackageLoader("eroica.prompts", "")]
    if folder:
        if not Path(folder).is_dir():
            raise InputError(f"the folder of prompts {folder} is not there", "", "EROICA_PROMPTS=")
        loaders.insert(0, jinja2.FileSystemLoader(folder))
    return ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )


def _tidy(text: str) -> str:
    """At most one empty line in a row, none at the ends."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() or (lines and lines[-1]):
            lines.append(line if line.strip() else "")
    return "\n".join(lines).strip("\n")


def family_of(category: str) -> str:
    """Return which family prompt a category gets, empty for none."""
    return _CATEGORY_PROMPTS.get(category) or _FAMILY_PROMPTS.get(FAMILY.get(category, ""), "")


def build(
    pack: Pack,
    purpose: Purpose,
    names: Pseudonyms,
    *,
    folder: Path | None = None,
    fence: str | None = None,
) -> Prompt:
    """Return the prompt of an evidence pack; all that comes from the job is pseudonymized."""
    category = pack.cause.category if pack.cause else ""
    mark = fence or _fence_for(pack.text)
    values = {
        "fence": mark,
        "parts": [replace(p, name=names.hide(p.name), text=names.hide(p.text)) for p in pack.parts],
        "left_out": [names.hide(text) for text in pack.left_out],
        "family": family_of(category),
        "action": pack.cause.action if pack.cause else "investigate",
    }
    return Prompt(
        purpose=purpose,
        system=render("system", folder=folder, fence=mark),
        user=render(purpose, folder=folder, **values),
        category=category,
        source_sha256=pack.source_sha256,
        fence=mark,
    )


def _fence_for(text: str) -> str:
    """A random id that does not occur in the data, so that nothing in it can close the fence."""
    while (fence := secrets.token_hex(6)) in text:
        continue
    return fence


def choose(incident: Incident, cause: str | None) -> Cause | None:
    """Return the cause of that id, the first one without an id; InputError if there is none."""
    if cause is None:
        return incident.causes[0] if incident.causes else None
    for one in incident.causes:
        if one.id == cause:
            return one
    known = ", ".join(one.id for one in incident.causes) or "none"
    raise InputError(
        f"incident {incident.id} has no cause {cause}",
        f"there are: {known}",
        next_step="eroica prompt --cause C1",
    )


def prompt_for(
    folder: IncidentFolder,
    purpose: str = "explain",
    *,
    cause: str | None = None,
    share: Share = "functions",
    source_root: str | None = None,
    budget: int = DEFAULT_BUDGET,
    templates: Path | None = None,
    fence: str | None = None,
) -> str:
    """Return the paste-ready prompt of an incident: exactly what a model would be sent."""
    prompt, _, _ = prepare(
        folder,
        purpose,
        cause=cause,
        share=share,
        source_root=source_root,
        budget=budget,
        templates=templates,
        fence=fence,
    )
    return prompt.text + "\n"


def _patterns(folder: IncidentFolder) -> "list[RankPatterns]":
    """The incident's patterns; a file that cannot be read only makes the prompt poorer."""
    if not folder.patterns_path.exists():
        return []
    from eroica.summarize import read_parquet

    try:
        return list(read_parquet(folder.patterns_path))
    except (EroicaError, OSError, ValueError) as error:
        _LOG.warning("the patterns of %s are left out: %s", folder.id, error)
        return []


def prepare(
    folder: IncidentFolder,
    purpose: str,
    *,
    cause: str | None = None,
    share: Share = "functions",
    source_root: str | None = None,
    budget: int = DEFAULT_BUDGET,
    templates: Path | None = None,
    fence: str | None = None,
) -> tuple[Prompt, Pack, Pseudonyms]:
    """Return the prompt with what is needed to check and reveal the answer."""
    if purpose not in PURPOSES:
        raise InputError(
            f"no prompt is for {purpose!r}",
            f"there are: {', '.join(PURPOSES)}",
            next_step="eroica prompt --for explain",
        )
    incident, evidence = folder.read_incident(), folder.read_evidence()
    patterns = _patterns(folder)
    pack = gather(
        incident,
        choose(incident, cause),
        evidence=evidence,
        patterns=patterns,
        source_root=source_root,
        share=share,
        budget=budget,
        may_show=may_be_patched if purpose == "patch" else None,
    )
    names = Pseudonyms.of(folder, incident, evidence, hide_names=share == "none")
    names.know_root(source_root)
    names.know_hosts(one.host for one in patterns)
    chosen = next(one for one in PURPOSES if one == purpose)
    prompt = build(pack, chosen, names, folder=templates, fence=fence)
    return prompt, pack, names

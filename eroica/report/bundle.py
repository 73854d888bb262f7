"""An incident to hand on: pseudonymized, or reduced to numbers.

``share="all"``: everything but transcripts, with hosts, users, secrets and addresses replaced.
``share="patterns"``: patterns only, names of the user's functions and files replaced as well and
function ids keyed, so that a provider can diagnose without seeing names or source. The key stays
in the owner's folder; ``reveal`` turns an answer back with it.
"""

import hashlib
import hmac
import io
import json
import secrets
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from eroica.columns import Arrivals, RankPatterns
from eroica.errors import InputError
from eroica.explain.privacy import Pseudonyms, is_library, key_path
from eroica.incident import PRIVATE, IncidentFolder, compact, encode, write_atomic
from eroica.records import Function, Incident, Place
from eroica.report import markdown
from eroica.report.content import Options
from eroica.report.material import Material, load

BundleShare = Literal["all", "patterns"]


def bundle(folder: IncidentFolder, out: Path | None = None, *, share: str = "all") -> Path:
    """Write ``<id>.tar.gz`` (or ``out``) and return its path; the key is kept in the folder."""
    if share not in ("all", "patterns"):
        raise InputError(
            f"--share {share} is unknown",
            "expected all or patterns",
            next_step="eroica bundle --share patterns",
        )
    material = load(folder)
    names = Pseudonyms.of(
        folder, material.incident, material.evidence, hide_names=share == "patterns"
    )
    names.know_hosts(one.host for one in material.patterns)
    if share == "patterns":
        files = _numbers(folder, material, names)
    else:
        files = _everything(folder, material, names)
    names.save(folder)
    target = out or folder.path.parent / f"{folder.id}.{share}.tar.gz"
    # Whoever names a place means others to see it; beside the incident it is the owner's.
    write_atomic(target, _packed(folder.id, files), None if out else PRIVATE)
    return target


def reveal(folder: IncidentFolder, text: str) -> str:
    """Return a text made from a bundle with the owner's names put back.

    A JSON document stays one: names are put into its strings. InputError where nothing of this
    incident was ever replaced.
    """
    if not key_path(folder).exists():
        raise InputError(
            f"incident {folder.id} has no names to put back",
            "nothing of it was pseudonymized here: only the owner's folder holds the key",
            f"eroica bundle {folder.id}",
        )
    names = Pseudonyms()
    names.restore(folder)
    try:
        document = json.loads(text)
    except ValueError:
        return names.reveal(text)
    if not isinstance(document, dict | list):
        return names.reveal(text)
    return json.dumps(names.reveal_all(document), indent=2, ensure_ascii=False) + "\n"


def _everything(folder: IncidentFolder, material: Material, names: Pseudonyms) -> dict[str, bytes]:
    files = {"incident.json": encode(names.hide_record(material.incident))}
    if material.evidence is not None:
        files["evidence.json"] = encode(names.hide_record(material.evidence))
    if material.diagnoses:
        files["diagnosis.json"] = encode([names.hide_record(one) for one in material.diagnoses])
    if material.patches:
        files["patches.json"] = encode([names.hide_record(one) for one in material.patches])
    for decision in material.decisions:
        line = compact(names.hide_record(decision)) + b"\n"
        files["decisions.jsonl"] = files.get("decisions.jsonl", b"") + line
    if material.patterns:
        files["patterns.parquet"] = _parquet([_quiet(one, names) for one in material.patterns])
    text = markdown.render(folder, Options(pictures=False, anonymize=True))
    return files | {"report.md": text.encode()}


def _numbers(folder: IncidentFolder, material: Material, names: Pseudonyms) -> dict[str, bytes]:
    """Patterns and what is needed to compare them: no prose, no stacks, no logs, no source."""
    if not material.patterns:
        raise InputError(
            f"incident {folder.id} holds no patterns to share",
            "it was made from stacks or dumps",
            "eroica bundle --share all",
        )
    for one in material.patterns:
        for function in one.functions:
            _know(function, names)
    key = _id_key(folder)
    quiet = [_keyed(_quiet(one, names), key) for one in material.patterns]
    incident = material.incident
    bare = Incident(
        id=incident.id,
        symptom=incident.symptom,
        onset=incident.onset,
        job=msgspec.structs.replace(names.hide_record(incident.job), command=(), source_root=None),
        causes=(),
        findings=(),
        warnings=(),
        created=incident.created,
        eroica=incident.eroica,
    )
    return {"incident.json": encode(bare), "patterns.parquet": _parquet(quiet)}


def _know(function: Function, names: Pseudonyms) -> None:
    places: list[Function | Place] = [function, *function.stack]
    for place in places:
        is_own = place.file is not None and not is_library(place.file)
        if is_own and place.file:
            names.know(place.file, "file")
            names.know(place.name, "function")
            names.know(getattr(place, "module", ""), "function")


def _quiet(one: RankPatterns, names: Pseudonyms) -> RankPatterns:
    functions, settings = names.hide_record(one.functions), names.hide_record(one.settings)
    source = names.hide(one.source)
    host = names.hide(one.host)
    return replace(one, host=host, functions=functions, settings=settings, source=source)


def _keyed(one: RankPatterns, key: bytes) -> RankPatterns:
    """Replace ids by keyed ones: a plain hash of a known name could be guessed."""

    def digest(text: str) -> str:
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:16]

    functions = tuple(
        msgspec.structs.replace(
            function,
            id=digest(function.id),
            group=digest(function.group) if function.group else None,
        )
        for function in one.functions
    )
    arrivals: Arrivals | None = one.arrivals
    if arrivals is not None:
        arrivals = replace(
            arrivals,
            key_C=tuple(_keyed_call(call, digest) for call in arrivals.key_C),
            culprit_C=tuple(digest(i) if i else "" for i in arrivals.culprit_C),
        )
    groups = {digest(name): ranks for name, ranks in one.groups.items()}
    one = replace(one, settings=(), warnings=(), source="", groups=groups)
    return replace(one, functions=functions, arrivals=arrivals)


def _keyed_call(call: str, digest: Callable[[str], str]) -> str:
    """``group|op|k`` with the group's name keyed; names of groups are the user's."""
    group, separator, rest = call.partition("|")
    return f"{digest(group)}{separator}{rest}" if group else call


def _id_key(folder: IncidentFolder) -> bytes:
    """The owner's key for function ids, made once (0600)."""
    path = key_path(folder).with_name("bundle.key")
    if not path.exists():
        write_atomic(path, secrets.token_bytes(32), 0o600)
    return path.read_bytes()


def _parquet(patterns: list[RankPatterns]) -> bytes:
    from eroica.summarize import write_parquet

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "patterns.parquet"
        write_parquet(path, patterns)
        return path.read_bytes()


def _packed(name: str, files: dict[str, bytes]) -> bytes:
    """A tar.gz without owners, and with a list of what is in it."""
    listing = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}
    files = {**files, "bundle.json": json.dumps(listing, indent=1).encode()}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, data in sorted(files.items()):
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()

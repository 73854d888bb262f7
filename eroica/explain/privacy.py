"""Stable pseudonyms for what must not leave, and the way back for answers and patches.

``hide`` replaces in one pass over the original text, ``reveal`` in one pass over the pseudonyms,
and the table is one to one, so that ``reveal(hide(text)) == text`` for every text. A text that
already looks like a pseudonym gets one itself, or the way back would be ambiguous.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from eroica.errors import InputError
from eroica.explain.secrets import Sight, is_secret_name, sights
from eroica.files import read_plain
from eroica.incident import IncidentFolder, write_atomic
from eroica.records import Function, Incident, JobEvidence, Place

_MAX_CACHED = 300
_LARGEST = 1 << 28

T = TypeVar("T")
Share = Literal["none", "names", "functions", "files"]
SHARES: tuple[Share, ...] = ("none", "names", "functions", "files")

_KINDS = ("secret", "user", "node", "ip", "mac", "mail", "home", "function", "file")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_TOKEN = re.compile(rf"(?:{'|'.join(_KINDS)})-\d+")
# Words too common in code and logs to be replaced where they stand alone.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "localhost root user users home admin ubuntu train trainer training model models data "
        "dataset loader main test tests run job jobs rank worker node host gpu cpu torch python "
        "work workspace project src tmp opt usr var app default none null true false self step "
        "loss batch",
    )
)


class Pseudonyms:
    """A growing table of real text to pseudonym."""

    def __init__(self) -> None:
        self._by_real: dict[str, str] = {}
        self._by_pseudonym: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._literals: dict[str, str] = {}
        self._by_word: dict[str, list[tuple[int, str]]] = {}
        """Known texts by one word of theirs, with the place of the word in the text."""
        self._hidden: dict[str, str] = {}
        self.replaced = 0
        """How many stretches of text ``hide`` replaced."""

    @classmethod
    def of(
        cls,
        folder: IncidentFolder | None,
        incident: Incident,
        evidence: JobEvidence | None,
        *,
        hide_names: bool = False,
    ) -> "Pseudonyms":
        """Return a table that knows the hosts, users and homes of an incident.

        With ``hide_names`` functions and files of the user's project are hidden too.
        """
        names = cls()
        if folder is not None:
            names.restore(folder)
        hosts = list(incident.job.hosts)
        hosts += [host for cause in incident.causes for host in cause.hosts]
        if evidence is not None:
            hosts += [rank.host for rank in evidence.ranks]
        names.know_hosts(hosts)
        home = _home()
        if not re.match(r"/(home|Users)/", home) and home.count("/") > 1:
            names.know(home, "home")
        for variable in ("USER", "LOGNAME"):
            names.know(os.environ.get(variable, ""), "user")
        names.know_root(incident.job.source_root)
        names.know_root(evidence.source_root if evidence else None)
        for name, value in os.environ.items():
            # A path in such a variable says where a key lies; replaced, it would hide sources too.
            if is_secret_name(name) and len(value) >= 8 and value[0] not in "/~.":
                names.know(value, "secret")
        if hide_names:
            names._know_code(incident, evidence)
        return names

    def know(self, real: str, kind: str) -> None:
        """Hide this text wherever it stands alone, from now on."""
        shortest = 2 if kind == "node" else 3
        if len(real) >= shortest and real.lower() not in _COMMON and real not in self._literals:
            self._literals[real] = kind
            words = [(match[0], match.start()) for match in _WORD.finditer(real)] or [("", 0)]
            # The rarest: of gpu-00001.cluster, gpu-00002.cluster ... the number tells them apart.
            word, offset = min(words, key=lambda one: len(self._by_word.get(one[0], ())))
            self._by_word.setdefault(word, []).append((offset, real))
            self._hidden.clear()

    def know_hosts(self, hosts: Iterable[str]) -> None:
        """Learn hosts, with and without their domain."""
        for host in hosts:
            self.know(host, "node")
            self.know(host.split(".")[0], "node")

    def know_root(self, root: str | None) -> None:
        """Learn the user's name from the path of the project."""
        for sight in sights(root or ""):
            self.know((root or "")[sight.start : sight.end], sight.kind)

    def hide(self, text: str) -> str:
        """Return the text with everything telling replaced."""
        found = [*sights(text), *self._known(text)]
        found += [Sight(*match.span(), "") for match in _TOKEN.finditer(text)]
        parts, position = [], 0
        for sight in sorted(found, key=lambda one: (one.start, -one.end)):
            if sight.start < position:
                if sight.end <= position or sight.kind != "secret":
                    continue
                sight = Sight(position, sight.end, sight.kind)
            end = sight.end
            # A digit behind a pseudonym would be taken for a part of its number.
            while end < len(text) and text[end].isdecimal():
                end += 1
            sight = Sight(sight.start, end, sight.kind)
            real = text[sight.start : sight.end]
            parts += [text[position : sight.start], self._pseudonym(real, sight.kind)]
            position = sight.end
            self.replaced += 1
        return "".join([*parts, text[position:]])

    def reveal(self, text: str) -> str:
        """Return the text with the pseudonyms of this table turned back."""
        return _TOKEN.sub(lambda m: self._by_pseudonym.get(m.group(), m.group()), text)

    def hide_record(self, record: T) -> T:
        """Return a record with everything telling in its texts replaced.

        Names of fields and words of a closed set stay: a user's function may be called ``name``,
        a user ``stuck``.
        """
        return cast(T, _walk(record, self._hide_member))

    def reveal_all(self, value: Any) -> Any:  # noqa: ANN401 - any JSON-able value
        return _walk(value, lambda text, _: self.reveal(text))

    def _hide_member(self, text: str, variable: str) -> str:
        # Stacks and hosts repeat over thousands of ranks.
        if not variable and len(text) <= _MAX_CACHED:
            if text not in self._hidden:
                self._hidden[text] = self.hide(text)
            return self._hidden[text]
        if variable and is_secret_name(variable) and text:
            return self._pseudonym(text, "secret")
        return self.hide(text)

    @property
    def table(self) -> dict[str, str]:
        """Pseudonym to real text."""
        return dict(self._by_pseudonym)

    def save(self, folder: IncidentFolder) -> None:
        """Keep the table beside the incident for its owner (0600); secrets are not written."""
        kept = {key: real for key, real in self._by_pseudonym.items() if key[:6] != "secret"}
        data = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False).encode()
        write_atomic(key_path(folder), data, 0o600)

    def restore(self, folder: IncidentFolder) -> None:
        """Take over the pseudonyms an earlier run gave, so that they stay the same."""
        path = key_path(folder)
        try:
            table = msgspec.json.decode(read_plain(path, _LARGEST), type=dict[str, str])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(
                f"{path} is no table of pseudonyms",
                str(error),
                next_step="move it away; what was shared before can then not be put back",
            ) from error
        for pseudonym, real in table.items():
            if _TOKEN.fullmatch(pseudonym):
                self._by_pseudonym[pseudonym], self._by_real[real] = real, pseudonym
                kind, _, number = pseudonym.rpartition("-")
                self._counts[kind] = max(self._counts.get(kind, 0), int(number[:9]))

    def _known(self, text: str) -> Iterable[Sight]:
        """Where known texts stand alone. Word by word: a job has thousands of hosts."""
        for match in _WORD.finditer(text) if self._by_word else ():
            for offset, real in self._by_word.get(match[0], ()):
                start = match.start() - offset
                end = start + len(real)
                if start >= 0 and text.startswith(real, start) and _stands_alone(text, start, end):
                    yield Sight(start, end, self._literals[real])
        for _, real in self._by_word.get("", ()):
            for match in re.finditer(re.escape(real), text):
                if _stands_alone(text, *match.span()):
                    yield Sight(*match.span(), self._literals[real])

    def _pseudonym(self, real: str, kind: str) -> str:
        if real in self._by_real:
            return self._by_real[real]
        kind = kind or real.rpartition("-")[0]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        pseudonym = f"{kind}-{self._counts[kind]}"
        self._by_real[real], self._by_pseudonym[pseudonym] = pseudonym, real
        return pseudonym

    def _know_code(self, incident: Incident, evidence: JobEvidence | None) -> None:
        """Hide names of functions and files below the project; the libraries' names stay."""
        places: list[Place | Function] = [p for cause in incident.causes for p in cause.functions]
        for finding in incident.findings:
            if finding.function is not None:
                places += [finding.function, *finding.function.stack]
        for rank in evidence.ranks if evidence else ():
            for process in (*rank.stacks, *rank.children):
                places += [frame for thread in process.threads for frame in thread.frames]
        for place in places:
            if place.file and not is_library(place.file):
                self.know(place.file, "file")
                self.know(place.file.rpartition("/")[2], "file")
                for name in (place.name, place.name.rpartition(".")[2]):
                    self.know(name, "function")


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not (_WORD.match(text, max(0, start - 1), start) or _WORD.match(text, end, end + 1))


def redact(text: str) -> str:
    """Return the text with secrets and users blotted out for good, line by line the same."""
    parts, position = [], 0
    for sight in sorted(sights(text), key=lambda one: (one.start, -one.end)):
        if sight.kind in ("secret", "user", "mail") and sight.end > position:
            start = max(sight.start, position)  # one may begin inside another and end after it
            lines = text.count("\n", start, sight.end)
            parts += [text[position:start], f"[{sight.kind}]" + "\n" * lines]
            position = sight.end
    return "".join([*parts, text[position:]])


def redact_all(value: Any, clean: Callable[[str], str] = redact) -> Any:  # noqa: ANN401
    """``clean`` every string of a JSON-able value, keys included."""

    def change(text: str, variable: str) -> str:
        return "[secret]" if text and is_secret_name(variable) else clean(text)

    return _walk(value, change)


def _home() -> str:
    """The home of who runs this; empty for a user id that has none, as in many containers."""
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def is_library(file: str) -> bool:
    """Say whether a file belongs to Python or an installed package, not to the user."""
    return bool(
        re.search(r"(^|/)(site-packages|dist-packages|lib/python3[.\d]*)/", file)
        or re.match(r"(torch|numpy|multiprocessing|threading|concurrent)(/|\.py$)", file)
        or file.startswith("<")
    )


def key_path(folder: IncidentFolder) -> Path:
    """Where the owner's table lies; it is never part of a bundle."""
    return folder.path / "pseudonyms.json"


def _walk(value: Any, change: Callable[[str, str], str], variable: str = "") -> Any:  # noqa: ANN401
    """Change every string; ``variable`` is the environment variable whose value a string is."""
    if isinstance(value, str):
        return change(value, variable)
    if isinstance(value, msgspec.Struct):
        words, variable = _closed_words(type(value)), _variable(getattr(value, "key", None))
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(
            value,
            **{
                name: _walk(item, change, variable * (name == "value"))
                for name, item in fields.items()
                if not (isinstance(item, str) and item in words[name])
            },
        )
    if isinstance(value, dict):
        variable = _variable(value.get("key"))
        return {
            change(k, "") if isinstance(k, str) else k: _walk(v, change, variable * (k == "value"))
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        before = [None, *value[:-1]]
        found = [_walk(item, change, _flag(b)) for b, item in zip(before, value, strict=False)]
        return tuple(found) if isinstance(value, tuple) else found
    return value


@lru_cache(maxsize=64)
def _closed_words(kind: type[msgspec.Struct]) -> dict[str, frozenset[str]]:
    """The words that each field of a record is limited to: ``slow``, ``kernel``, ``all`` ..."""
    return {
        field.name: frozenset(
            word
            for part in (field.type, *get_args(field.type))
            if get_origin(part) is Literal
            for word in get_args(part)
        )
        for field in msgspec.structs.fields(kind)
    }


def _variable(key: object) -> str:
    """The environment variable of a setting, whose name stands beside the value, not with it."""
    return key[4:] if isinstance(key, str) and key.startswith("env.") else ""


def _flag(word: Any) -> str:  # noqa: ANN401 - any item of a list
    """The name of a command line's option, whose value is the next word of the list."""
    match = re.fullmatch(r"--?([A-Za-z][\w.-]*)", word) if isinstance(word, str) else None
    return match.group(1) if match else ""

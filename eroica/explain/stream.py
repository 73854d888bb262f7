"""A streamed JSON answer as prose: a person watching sees sentences, not brackets."""

import json

from eroica.explain.model import OnToken

SHOWN = frozenset({"summary", "text", "next_steps", "disproved_by"})


class ProseStream:
    """Takes an answer in pieces and hands on the strings that people read, a line each.

    It reads whatever comes: text before the first brace is skipped, and JSON that breaks off just
    ends the prose there. Judging the answer is left to ``answer.parse``.
    """

    def __init__(self, hand_on: OnToken) -> None:
        self._hand_on = hand_on
        self._containers: list[str] = []
        self._keys: list[str] = []
        self._awaits_key = False
        self._in_string = False
        self._is_key = False
        self._string = ""
        self._escape = ""

    def __call__(self, piece: str) -> None:
        shown = "".join(self._next(char) for char in piece)
        if shown:
            self._hand_on(shown)

    def _next(self, char: str) -> str:
        if self._in_string:
            return self._inside(char)
        if char in "{[" and (self._containers or char == "{"):
            self._containers.append(char)
            self._keys.append(self._keys[-1] if self._keys else "")
            self._awaits_key = char == "{"
        elif not self._containers:
            return ""
        elif char in "}]":
            self._containers.pop()
            self._keys.pop()
            self._awaits_key = False
        elif char == ",":
            self._awaits_key = self._containers[-1] == "{"
        elif char == '"':
            self._in_string, self._string = True, ""
            self._is_key, self._awaits_key = self._awaits_key, False
        return ""

    def _inside(self, char: str) -> str:
        if self._escape:
            return self._escaped(char)
        if char == "\\":
            self._escape = char
            return ""
        if char != '"':
            return self._taken(char)
        self._in_string = False
        if self._is_key:
            self._keys[-1] = self._string
            return ""
        return "\n" if self._keys[-1] in SHOWN else ""

    def _escaped(self, char: str) -> str:
        self._escape += char
        if self._escape[1] == "u" and len(self._escape) < 6:
            return ""
        try:
            text = str(json.loads(f'"{self._escape}"'))
        except ValueError:
            text = char
        self._escape = ""
        # Half of a surrogate pair is no character; a terminal gets none of it.
        return self._taken("".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF))

    def _taken(self, text: str) -> str:
        if self._is_key:
            self._string += text
            return ""
        return text if self._keys[-1] in SHOWN else ""

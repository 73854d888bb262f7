"""Foreign text made safe to look at: nothing in it may hide or move anything."""

import codecs

_BLANK = frozenset(
    map(
        chr,
        [
            0x034F,  # combining grapheme joiner
            0x115F, 0x1160, 0x3164, 0xFFA0,  # Hangul fillers: letters that show as nothing
            0x17B4, 0x17B5,  # Khmer inherent vowels
            0x2800,  # Braille pattern blank
            *range(0x180B, 0x1810),  # Mongolian variation selectors
            *range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0),  # variation selectors but emoji's
        ],
    )
)  # fmt: skip
"""What Unicode counts as printable and a terminal shows as nothing: names and bytes hide in it."""


def visible(text: str, *, tabs: bool = False) -> str:
    """Show control, bidi and zero-width characters as escapes; with ``tabs``, tabs as arrows.

    Newlines stay; so do printable characters of any script.
    """
    if text.isascii() and text.isprintable():  # most lines of most files
        return text
    shown = "".join(
        character
        if character in "\n\t" or (character.isprintable() and character not in _BLANK)
        else character.encode("unicode_escape").decode()
        for character in text
    )
    return shown.replace("\t", "→   ") if tabs else shown


def one_line(text: str) -> str:
    """``visible`` text with its line ends as spaces."""
    return visible(text).replace("\n", " ")


_PLAIN = str.maketrans(
    dict.fromkeys("█▉▊▋▌▇▆▅■●", "#")
    | dict.fromkeys("▏▎▍│┃▕", "|")
    | dict.fromkeys("─━·•\u2013\u2014\u2212", "-")
    | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+")
    | {"→": "->", "←": "<-", "µ": "u", "\u00d7": "x", "±": "+-", "…": "...", "≥": ">=", "≤": "<="}
)


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: what a locale cannot show is spelled in ASCII, never an error.

    Drawn marks become their nearest sign, anything else an escape.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = error.object[error.start : error.end].translate(_PLAIN)
    return shown.encode("ascii", "backslashreplace").decode("ascii"), error.end


SPELL_OUT = "eroica.spell_out"
"""The name of that handler, for a stream's ``errors``."""
codecs.register_error(SPELL_OUT, spell_out)


def function_name(name: str) -> str:
    """Return the function that a comprehension, a generator expression or a lambda stands in.

    ``load.<locals>.<listcomp>`` is ``load`` to the person who wrote it. A name without its
    function stays.
    """
    while name.endswith(">") and ".<locals>.<" in name:
        name = name[: name.rindex(".<locals>.<")]
    return name

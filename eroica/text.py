"""Foreign text made safe to look at: nothing in it may hide or move anything."""


def visible(text: str, *, tabs: bool = False) -> str:
    """Show control, bidi and zero-width characters as escapes; with ``tabs``, tabs as arrows.

    Newlines stay; so do printable characters of any script.
    """
    shown = "".join(
        character
        if character in "\n\t" or character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in text
    )
    return shown.replace("\t", "→   ") if tabs else shown


def one_line(text: str) -> str:
    """``visible`` text with its line ends as spaces."""
    return visible(text).replace("\n", " ")

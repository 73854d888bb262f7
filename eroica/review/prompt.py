"""The review without a screen: hunks one after the other with the keys of ``git add -p``."""

from collections.abc import Callable

from eroica.review import views
from eroica.review.session import ConflictError, Session

HELP = "y accept, n reject, a all safe ones, d rest of the file, s split, u undo, w write, q quit"


def review_by_prompt(
    session: Session, *, ask: Callable[[str], str], show: Callable[[str], None]
) -> bool:
    """Walk the open hunks; True where the accepted ones are to be written.

    ``ask`` returns one line or raises EOFError, which leaves without writing.
    """
    index = 0
    while True:
        waiting = [n for n, item in enumerate(session.items) if item.state == "open"]
        if waiting:
            index = next((n for n in waiting if n >= index), waiting[0])
            item = session.items[index]
            show(views.title(session, item))
            show(views.diff(session, item))
        try:
            answer = ask("[y,n,a,d,s,u,w,q,?] " if waiting else "[w,u,q] ").strip()[:1]
        except EOFError:
            return False
        if answer == "q":
            return False
        if answer == "w":
            return session.counts()["accepted"] > 0
        _decide(session, answer, index if waiting else None, show)


def _decide(session: Session, answer: str, index: int | None, show: Callable[[str], None]) -> None:
    if answer == "u":
        show(f"undone: {session.undo() or 'nothing'}")
    elif answer == "a":
        show(f"{session.accept_safe()} safe hunks accepted")
    elif index is None or answer not in "ynds" or not answer:
        show(HELP)
    elif answer == "y":
        try:
            session.accept(session.items[index])
        except ConflictError as error:
            show(f"not accepted: {error}")
    elif answer == "n":
        session.reject(session.items[index])
    elif answer == "d":
        session.reject_file(session.items[index])
    elif len(session.split(session.items[index])) == 1:
        show("this hunk cannot be split")

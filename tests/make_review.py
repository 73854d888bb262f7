"""Hand-made patches and review sessions."""

import hashlib

from eroica.records import Cause, FileEdit, Incident, Job, Patch, Place
from eroica.review.session import Session

BEFORE = "".join(f"line {n}\n" for n in range(1, 31))


def changed(*numbers: int) -> str:
    lines = BEFORE.splitlines(keepends=True)
    for number in numbers:
        lines[number - 1] = f"changed {number}\n"
    return "".join(lines)


def patch(name: str, after: str, *, cause: str = "C1", label: str = "review", path: str = "a.txt"):
    digest = hashlib.sha256(BEFORE.encode()).hexdigest()
    edit = FileEdit(path=path, before=BEFORE, after=after, sha256=digest)
    return Patch(
        id=name,
        cause=cause,
        source="fixer X",
        label=label,
        title=name,
        edits=(edit,),
        diff="",
    )


def session(*patches: Patch) -> Session:
    causes = tuple(
        Cause(
            id=name,
            category="gc_pause",
            ranks="all",
            functions=(Place(name="f", file="a.py", line=1),),
            share=0.2,
            confidence=0.9,
            summary="",
            action="patch",
        )
        for name in sorted({one.cause for one in patches})
    )
    incident = Incident(
        id="one",
        symptom="slow",
        onset=None,
        job=Job(world_size=2, ranks=(0, 1)),
        causes=causes,
        findings=(),
        warnings=(),
    )
    return Session.of(incident, list(patches))

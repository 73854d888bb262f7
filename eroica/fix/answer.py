"""A model's answer -> a patch, or the reasons why not."""

import msgspec

from eroica.records import Patch


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    reasons: tuple[str, ...]


def from_answer() -> Patch | Refusal:
    return Refusal(reasons=())

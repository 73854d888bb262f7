"""What looks like a secret, an address or a home in foreign text: where it starts and ends."""

import ipaddress
import re
from collections.abc import Iterator
from typing import NamedTuple


class Sight(NamedTuple):
    """A stretch of text to hide."""

    start: int
    end: int
    kind: str
    """``secret``, ``user``, ``node``, ``ip``, ``mac``, ``mail`` ..."""


_WHOLE = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}          # model providers, payment providers
    | \bhf_[A-Za-z0-9]{16,}                      # hub tokens
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}               # cloud access keys
    | \bAIza[A-Za-z0-9_-]{30,}
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,}
    | \bglpat-[A-Za-z0-9_-]{16,} | \bxox[abposr]-[A-Za-z0-9-]{10,}
    | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[A-Za-z0-9_-]{30,} | \blsv2_[a-z]+_[A-Za-z0-9_]{16,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*   # JSON web tokens
    | \b[0-9a-fA-F]{32,}\b                       # keys and digests
    """,
    re.VERBOSE | re.DOTALL,
)
_URL_LOGIN = re.compile(
    r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]{0,20}://([^\s/:@'\"]{1,200}(?::[^\s/@'\"]{0,200})?)@"
)
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)\s+([A-Za-z0-9+/=_.~-]{8,})")
# Signatures and keys in the query of an address, e.g. of object stores.
_QUERY = re.compile(
    r"(?i)[?&;](?:sig|signature|(?:x-(?:amz|goog)-)?(?:signature|credential|security-token)"
    r"|(?:access_|api_?|auth_?|session_?)?(?:key|token)|secret|password|pass|code)=([^&\s\"'#;<>]{6,})"
)
# A variable as the hook reports it, name and value apart, printed as JSON or by Python.
_SETTING = re.compile(
    r"""["']key["']:\s*["']env\.(?P<name>\w+)["'],\s*["']value["']:\s*["'](?P<value>[^"'\n]+)"""
)
# A name that ends in one of these holds a secret. The word must end the name, or
# max_tokens and TOKENIZERS_PARALLELISM would count.
_NAMED = re.compile(
    r"""(?ix)
    (?<![A-Za-z0-9])
    (?P<name>[A-Za-z0-9_.-]{0,80}(?P<word>key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|
       auth|cookie|dsn|(?<![A-Za-z0-9])pass))
    (?:["'\]]*\s*(?:=>|:=|[=:])\s*|(?<=[a-z])\s+(?=[^\s=:]))
    (?:[rbuf]{0,2}(?P<quote>["'])(?P<quoted>[^"'\n]{1,4000})(?P=quote)
       |(?P<bare>[^\s"',;()\[\]{}]+))
    """
)
_SURE = re.compile(r"(?i)secret|passw|passphrase|pwd|credential")
_VALUE = re.compile(r"^(?=.*[A-Za-z])[A-Za-z0-9+/=_.:~!@#$%^&*?-]{8,}$")
_MIXED = re.compile(r"\d")
# A pass over data, not a password; and a key that is no more than a name of something.
_OTHER_PASS = re.compile(
    r"(?i)(?:forward|backward|fwd|bwd|first|second|single|multi|one|num|n)[_.-]?pass$"
)
_KEY_OF_SECRETS = re.compile(
    r"(?i)(?:api|access|secret|private|auth|account|encrypt(?:ion)?|master|sign(?:ing)?|shared|ssh|storage|"
    r"service|subscription|license|deploy|client|app|write|read|ingest|project)[_.-]?key$"
)
_AFTER_TYPE = re.compile(r" *[\[|,)=]|:$")
"""What follows the type in ``api_key: Optional[str] = None``."""
_NUMBER = re.compile(r"^[+-]?[\d.,:/]+(?:e[+-]?\d+)?\s?[a-zA-Z%]{0,3}$")
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IP6 = re.compile(r"(?<![\w:.])[0-9a-fA-F:]{0,36}:[0-9a-fA-F:]{0,36}:[0-9a-fA-F:.]{0,36}(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_MAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"
)
_HOME = re.compile(r"(?<![\w.])/(?:home|Users|homes)/([A-Za-z0-9._-]+)")
_WINDOWS_HOME = re.compile(r"(?i)[a-z]:\\Users\\([A-Za-z0-9._-]+)")


def sights(text: str) -> Iterator[Sight]:
    """Yield everything in the text that must not leave, in any order, possibly overlapping."""
    for match in _WHOLE.finditer(text):
        yield Sight(*match.span(), "secret")
    for pattern in (_URL_LOGIN, _BEARER, _QUERY):
        for match in pattern.finditer(text):
            yield Sight(*match.span(1), "secret")
    for match in _SETTING.finditer(text):
        if is_secret_name(match.group("name")):
            yield Sight(*match.span("value"), "secret")
    yield from _named_secrets(text)
    for pattern, kind in ((_MAC, "mac"), (_MAIL, "mail")):
        for match in pattern.finditer(text):
            yield Sight(*match.span(), kind)
    for pattern in (_IP4, _IP6):
        for match in pattern.finditer(text):
            if _is_telling_address(match.group()):
                yield Sight(*match.span(), "ip")
    for pattern in (_HOME, _WINDOWS_HOME):
        for match in pattern.finditer(text):
            yield Sight(*match.span(1), "user")


_FOLDERS = frozenset({"PWD", "OLDPWD"})


def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name usually holds a secret."""
    if name.upper() in _FOLDERS:
        return False
    words = re.split(r"[^a-z0-9]+", name.lower())
    last = words[-1] if words else ""
    ends = (
        r"(key|token|secret|passw(or)?d|pwd|credentials?|auth|cookie|passphrase|dsn)$|^(pass|sig)$"
    )
    return bool(re.search(ends, last))


def _named_secrets(text: str) -> Iterator[Sight]:
    for match in _NAMED.finditer(text):
        group = "quoted" if match.group("quoted") is not None else "bare"
        value = match.group(group)
        if match.group("name").upper() in _FOLDERS:
            continue
        is_flag = match.group("name").startswith("--")
        is_joined = text[match.end("name") : match.start(group)].strip(" '\"]") != ""
        if not (is_flag or is_joined):
            continue
        # A bare value in code is an expression; only an environment-like line assigns one.
        if group == "bare" and not (is_flag or _is_environment(match.group("name"), text, match)):
            continue
        if _is_secret(match.group("name"), match.group("word").lower(), value):
            yield Sight(*match.span(group), "secret")


def _is_secret(name: str, word: str, value: str) -> bool:
    """Say whether a value is one, by the name it has and what it looks like."""
    if word == "pass":
        is_measured = _OTHER_PASS.search(name) or _NUMBER.match(value)
        return len(value) >= 6 and not is_measured
    if _SURE.search(word):
        return len(value) >= 3
    if not _VALUE.match(value):
        return False
    # Of other keys (of a dict, to sort by) only what looks drawn at random counts.
    return word != "key" or bool(_KEY_OF_SECRETS.search(name) or _MIXED.search(value))


def _is_environment(name: str, text: str, match: "re.Match[str]") -> bool:
    """``NAME=value`` and ``name: value`` without code around it."""
    between = text[match.end("name") : match.start("bare")]
    value = match.group("bare")
    if between.startswith(":") and _AFTER_TYPE.match(text, match.end("bare")):
        return False
    if not (name.isupper() or _SURE.search(name) or _MIXED.search(value)):
        return False
    looks_like_code = bool(
        re.search(r"[A-Za-z_]\w*\.[A-Za-z_]\w*$|^(None|True|False|self)\b", value)
    )
    return not looks_like_code and (name.isupper() or between in ("=", ": ", ":"))


def _is_telling_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or text in ("::", "255.255.255.255"))

"""Which files an assistant may read: those below the allowed folders, links resolved."""

from fnmatch import fnmatch
from pathlib import Path

from eroica import incident as incidents
from eroica.errors import InputError
from eroica.explain.privacy import redact

MAX_FILE_BYTES = 2_000_000
SECRET_FILES = (
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.asc",
    "*.ppk", "*.tfstate", "*.tfvars", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa",
    "credentials", "credentials.*", "secrets.*", "secret.*", "*service?account*.json",
    "kubeconfig*", "htpasswd", "pseudonyms.json", "model.jsonl",
)  # fmt: skip
"""Names of files that hold keys, lower case; Python files are never meant. Names that begin with
a dot (.env, .ssh, .npmrc, .git, .eroica) need no list: none of them is read."""


class Roots:
    """The folders a server was started for; everything else does not exist for it."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = [folder.resolve() for folder in folders]

    def resolve(self, path: str) -> Path:
        """Return the real path of something below a root; InputError for anything else."""
        asked = Path(path)
        candidates = [asked] if asked.is_absolute() else [root / asked for root in self.folders]
        for candidate in candidates:
            try:
                real = candidate.resolve()
                if real.exists() and self.holds(real):
                    return real
            except (OSError, ValueError):  # a name too long, a NUL in it: no such file either
                continue
        listed = ", ".join(str(root) for root in self.folders)
        raise InputError(
            f"{path!r} is not below an allowed folder",
            f"allowed: {listed}",
            next_step="a person can start eroica mcp with --root FOLDER",
        )

    def holds(self, real: Path) -> bool:
        """True where a resolved path lies below a root and is nothing that holds secrets."""
        store = incidents.store().resolve()
        if real == store or store in real.parents:
            return False
        for root in self.folders:
            if real == root or root in real.parents:
                return not any(is_secret(part) for part in real.relative_to(root).parts)
        return False

    def clean(self, text: str) -> str:
        """Return the text without secrets and users; paths below a root become relative to it."""
        for root in self.folders:
            if len(root.parts) > 1:
                text = text.replace(f"{root}/", "")
        return redact(text)

    def read_source(self, path: str) -> tuple[Path, str]:
        """Read a text file below a root; InputError for folders, large or binary files."""
        real = self.resolve(path)
        if not real.is_file():
            raise InputError(
                f"{path!r} is not a file",
                found="a folder, a device or a pipe is there",
                next_step="name a file in it",
            )
        try:
            if real.stat().st_size > MAX_FILE_BYTES:
                raise InputError(
                    f"{path!r} is too large",
                    f"over {MAX_FILE_BYTES} bytes",
                    next_step="name a smaller file",
                )
            data = real.read_bytes()
        except OSError as error:
            raise InputError(
                f"{path!r} cannot be read",
                error.strerror or str(error),
                next_step="name another file, or ask the person for access to it",
            ) from error
        if b"\0" in data[:8192]:
            raise InputError(
                f"{path!r} is not a text file",
                found="it holds NUL bytes",
                next_step="name a source or log file",
            )
        return real, data.decode("utf-8", "replace")


def is_secret(name: str) -> bool:
    """Say whether a file or folder of this name may hold keys or the user's private data."""
    lower = name.lower()
    if lower.startswith("."):
        return True
    is_code = lower.endswith((".py", ".pyi"))
    return not is_code and any(fnmatch(lower, pattern) for pattern in SECRET_FILES)

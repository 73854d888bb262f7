"""Which files an assistant may read: those below the allowed folders, links resolved."""

from pathlib import Path

from eroica.errors import InputError

MAX_FILE_BYTES = 2_000_000
SECRET_NAMES = (".env", "id_rsa", "id_ed25519", ".netrc", ".pgpass", "credentials", ".git")


class Roots:
    """The folders a server was started for; everything else does not exist for it."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = [folder.resolve() for folder in folders]

    def resolve(self, path: str) -> Path:
        """Return the real path of something below a root; InputError for anything else."""
        asked = Path(path)
        candidates = [asked] if asked.is_absolute() else [root / asked for root in self.folders]
        for candidate in candidates:
            real = candidate.resolve()
            if real.exists() and self.holds(real):
                return real
        listed = ", ".join(str(root) for root in self.folders)
        raise InputError(f"{path!r} is not below an allowed folder", f"allowed: {listed}")

    def holds(self, real: Path) -> bool:
        """True where a resolved path lies below a root and is nothing that holds secrets."""
        if any(part in SECRET_NAMES for part in real.parts):
            return False
        return any(real == root or root in real.parents for root in self.folders)

    def read_source(self, path: str) -> tuple[Path, str]:
        """Read a text file below a root; InputError for folders, large or binary files."""
        real = self.resolve(path)
        if not real.is_file():
            raise InputError(f"{path!r} is not a file")
        if real.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path!r} is too large", f"over {MAX_FILE_BYTES} bytes")
        data = real.read_bytes()
        if b"\0" in data[:8192]:
            raise InputError(f"{path!r} is not a text file")
        return real, data.decode("utf-8", "replace")

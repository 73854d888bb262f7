"""Does installing eroica move what a training image has? Images are made up of pinned packages.

    python benchmarks/install.py                 all images (needs a package index)
    python benchmarks/install.py --only 2024

Each image is an environment with such versions as images of its year have, without torch, which
eroica does not ask for. The checkout's wheel is installed into it as docs/guides/install.md says,
with what is there as constraints; what was there before is compared with what is there after,
and the command is run. Exit code 1 where something moved or does not run. uv does it where it is
on PATH, in a minute; else pip, which tries version after version.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = {
    "2024": {
        "numpy": "1.26.4", "pydantic": "2.7.4", "rich": "13.5.3", "typer": "0.12.5",
        "click": "8.1.7", "typing-extensions": "4.12.2", "jinja2": "3.1.2", "pyarrow": "16.1.0",
        "psutil": "5.9.5", "matplotlib": "3.8.2", "pyyaml": "6.0.1", "packaging": "23.2",
        "requests": "2.31.0", "zstandard": "0.23.0", "pillow": "10.3.0", "certifi": "2024.7.4",
    },
    "2025": {
        "numpy": "2.1.2", "pydantic": "2.10.3", "rich": "13.9.4", "typer": "0.15.1",
        "typing-extensions": "4.12.2", "jinja2": "3.1.4", "pyarrow": "18.1.0", "psutil": "6.1.0",
        "matplotlib": "3.10.0", "pyyaml": "6.0.2", "packaging": "24.2", "requests": "2.32.3",
        "click": "8.1.8", "certifi": "2024.12.14",
    },
}  # fmt: skip


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def versions(python: Path) -> dict[str, str]:
    uv = shutil.which("uv")
    pip = (uv, "pip", "freeze", "--python", python) if uv else (python, "-m", "pip", "freeze")
    lines = run(*pip).splitlines()
    pairs = (line.partition("==") for line in lines)
    return {name.lower(): version for name, separator, version in pairs if separator}


def check(name: str, wheel: Path, folder: Path) -> list[str]:
    """Install into one image; return what is wrong."""
    environment = folder / name
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    uv = shutil.which("uv")
    pip = (uv, "pip", "install", "-q", "--python", python)
    if not uv:
        pip = (python, "-m", "pip", "install", "-q")
        run(*pip, "--upgrade", "pip")
    run(*pip, *(f"{package}=={version}" for package, version in IMAGES[name].items()))
    before = versions(python)
    have = folder / f"{name}.txt"
    have.write_text("".join(f"{package}=={version}\n" for package, version in before.items()))
    run(*pip, "-c", have, wheel)
    after = versions(python)
    wrong = [
        f"{package} moved from {version} to {after.get(package, 'nothing')}"
        for package, version in before.items()
        if after.get(package) != version
    ]
    said = run(environment / "bin" / "eroica", "--version").strip()
    new = len(after) - len(before)
    print(f"image {name}: {len(before)} packages stay, {new} are new; {said} runs")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=[*IMAGES])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eroica-install-") as scratch:
        folder = Path(scratch)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
        (wheel,) = folder.glob("eroica-*.whl")
        wrong = []
        for name in [given.only] if given.only else IMAGES:
            wrong += [f"image {name}: {line}" for line in check(name, wheel, folder)]
    print("\n".join(wrong) or "nothing moved")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

"""The package as it is installed: every folder listed, every data file in the wheel."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = {
    "eroica": "eroica",
    "examples": "eroica.examples",
    "fixers": "eroica.fixers",
    "prompts": "eroica.prompts",
}


def sources() -> set[str]:
    found = set()
    for top, package in TOPS.items():
        for path in (ROOT / top).rglob("*"):
            is_source = path.suffix not in (".pyc", ".nbi", ".nbc")
            if path.is_file() and is_source and "__pycache__" not in path.parts:
                found.add("/".join([*package.split("."), *path.relative_to(ROOT / top).parts]))
    return found


def test_every_package_folder_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        name.rpartition("/")[0].replace("/", ".")
        for name in sources()
        if name.endswith("__init__.py")
    }
    assert set(settings["packages"]) == folders


def test_wheel_holds_the_checkout(tmp_path):
    # From a copy: setuptools leaves build/ behind, and a stale build/lib puts deleted files in.
    for top in TOPS:
        ignored = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
        shutil.copytree(ROOT / top, tmp_path / top, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", tmp_path, tmp_path], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources()

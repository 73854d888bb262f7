"""The package as it is installed: every folder listed, every data file in the wheel."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

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


def copied(target: Path) -> Path:
    """The checkout without what others left in it: a stale build/lib puts deleted files in."""
    for top in TOPS:
        ignored = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
        shutil.copytree(ROOT / top, target / top, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def built(kind: str, source: Path, out: Path) -> Path:
    """A wheel or sdist of a source tree, made by the backend that pip would call."""
    code = f"from setuptools.build_meta import build_{kind} as b; import sys; b(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, out], cwd=source, check=True, capture_output=True)
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the sdist of the checkout: what an installer that builds ends up with."""
    base = tmp_path_factory.mktemp("built")
    for name in ("checkout", "sdist", "unpacked", "wheel"):
        (base / name).mkdir()
    sdist = built("sdist", copied(base / "checkout"), base / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(base / "unpacked", filter="data")
    (unpacked,) = (base / "unpacked").iterdir()
    return built("wheel", unpacked, base / "wheel")


def test_the_wheel_of_the_sdist_holds_the_checkout(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources()


def test_the_wheel_is_for_every_platform_and_says_its_license(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert any(name.endswith("/LICENSE") for name in names)
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Run the command from the wheel alone: not the checkout, not its folder, not its editable."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*words: str) -> str:
        env = os.environ | {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-P", *words], cwd=elsewhere, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(target) in run("-c", "import eroica.fixers; print(eroica.fixers.__file__)")
    return run


def test_the_wheel_runs_as_it_is_built(installed):
    """Each line needs a data file or folder that a wheel may lack."""
    assert installed("-m", "eroica", "--version").startswith("eroica ")
    assert "COL001" in installed("-m", "eroica", "fixers")
    assert "barrier_on_rank0" in installed("-m", "eroica", "demo", "list")
    assert "SKILL.md" in installed("-m", "eroica", "plugin", "install", "claude", "--dry-run")
    incident = str(ROOT / "tests" / "data" / "incidents" / "slow")
    assert "straggler_data_loading" in installed("-m", "eroica", "prompt", incident)
    code = "from eroica.review.app import ReviewApp; print(ReviewApp.CSS_PATH)"
    assert ".tcss" in installed("-c", code)
    code = "from eroica.watch.command import INJECT; print((INJECT / 'sitecustomize.py').is_file())"
    assert installed("-c", code).strip() == "True"


def test_only_lower_bounds_are_asked_for_and_no_torch():
    """In a training image eroica must not move what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        assert re.fullmatch(r"[A-Za-z0-9_-]+>=[0-9.]+", requirement), requirement
        assert not requirement.startswith("torch")


def test_the_versions_of_python_that_are_declared_are_the_ones_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)]
    assert project["requires-python"] == f">={named[0]}"
    tested = re.search(r"Python (3\.[0-9., and]+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert re.findall(r"3\.\d+", tested[1]) == named

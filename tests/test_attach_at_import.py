"""Who becomes a rank by ``import eroica``: a training script, never one of eroica's commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EROICA = Path(sys.executable).with_name("eroica")


def attached(tmp_path: Path, *words: str) -> bool:
    """Run words as a shell in a job's container would, and say whether a rank came of it."""
    given = {name: text for name, text in os.environ.items() if name not in ("EROICA", "RANK")}
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    given |= {"RANK": "0", "WORLD_SIZE": "2", "EROICA_RUN": str(meeting), "EROICA_AGENT": "0"}
    probe = tmp_path / "sitecustomize.py"
    probe.write_text(
        "import atexit, sys\n"
        "def say():\n"
        f"    with open({str(tmp_path / 'answer')!r}, 'w') as stream:\n"
        "        stream.write(str('_eroica_attached' in sys.modules))\n"
        "atexit.register(say)\n"
    )
    subprocess.run(
        words, env=given | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, check=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    return (tmp_path / "answer").read_text() == "True"


@pytest.mark.parametrize(
    "words",
    [
        ([str(EROICA), "--version"] if EROICA.exists() else [sys.executable, "-m", "eroica"]),
        [sys.executable, "-m", "eroica", "--help"],
        [sys.executable, "-m", "eroica", "list", "--json"],
        [sys.executable, "-meroica", "--version"],
        [sys.executable, "-m", "eroica.errors"],
        [sys.executable, "-c", "import sys; sys.argv=['/x/bin/eroica', 'list']; import eroica"],
    ],
)
def test_a_command_of_eroica_is_no_rank(tmp_path, words):
    assert not attached(tmp_path, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--name", "eroica"],
        ["-m", "train", "eroica"],
        ["-m", "package.eroica"],
    ],
)
def test_a_training_script_is_one(tmp_path, words):
    (tmp_path / "train.py").write_text("import eroica\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "eroica.py").write_text("import eroica\n")
    assert attached(tmp_path, sys.executable, *words)

"""Put the output of a real ``eroica demo`` into README.md, or check that what it shows is real.

    python examples/show_off.py            run the demo, write the block
    python examples/show_off.py --check    run the demo; every line of the block must come again

Numbers (times, ids, confidence) may differ from run to run; words may not.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- demo: .*? -->\n```console\n).*?(```\n)", re.S)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
LEFT_OUT = ("why ", "not seen", "incident ", "report ", "next ")


def run_demo() -> str:
    """Return what the demo prints on stdout, run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "eroica", "demo", "--yes"],
            cwd=folder,
            env=os.environ | {"NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    if done.returncode != 0:
        sys.exit(f"the demo ended {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def shown(output: str) -> str:
    """The part for the README: verdict, table, evidence, patch, rehearsal."""
    kept, is_left_out = [], False
    for line in output.splitlines():
        if line and not line.startswith(" "):
            is_left_out = line.startswith(LEFT_OUT)
        if not is_left_out:
            kept.append(line.rstrip())
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return f"$ eroica demo\n{text}\n"


def words_of(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())


def main() -> int:
    output = run_demo()
    readme = README.read_text()
    match = BLOCK.search(readme)
    if match is None:
        sys.exit("README.md has no block for the demo")
    if "--check" not in sys.argv:
        README.write_text(BLOCK.sub(lambda m: m[1] + shown(output) + m[2], readme))
        return 0
    real = {words_of(line) for line in output.splitlines()}
    block = match[0].splitlines()[3:-1]
    missing = [line for line in block if line.strip() and words_of(line) not in real]
    for line in missing:
        print(f"README shows what the demo does not print: {line}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())

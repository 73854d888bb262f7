"""Make docs/pictures/review.svg: the review of the demo's incident, as a terminal shows it.

    python docs/screenshot.py              run the demo, open its review, write the picture
    python docs/screenshot.py --light      the same in a light terminal (review-light.svg)

The demo is a real job (needs torch); the picture is what Textual draws for a terminal of 120x38.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from eroica.incident import IncidentFolder
from eroica.review.app import ReviewApp
from eroica.review.session import Session

PICTURES = Path(__file__).parent / "pictures"
SIZE = (120, 38)


def run_demo(home: Path) -> IncidentFolder:
    """Run ``eroica demo`` with its incidents below ``home`` and return the one it made."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eroica", "demo", "--yes"],
        cwd=home,
        env=os.environ | {"EROICA_HOME": str(home), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        sys.exit(f"the demo ended {done.returncode}:\n{done.stdout}\n{done.stderr}")
    (made,) = sorted((home / "incidents").iterdir())
    return IncidentFolder(made)


async def picture(folder: IncidentFolder, *, is_dark: bool) -> str:
    """The review of an incident as SVG."""
    app = ReviewApp(Session.load(folder), diagnoses=folder.read_diagnoses(), is_dark=is_dark)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        return standalone(app.export_screenshot(title="eroica review"))


def standalone(svg: str) -> str:
    """Take out the fonts that would be fetched from elsewhere: any monospace font does."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


def main() -> None:
    is_dark = "--light" not in sys.argv
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = run_demo(Path(scratch))
        svg = asyncio.run(picture(folder, is_dark=is_dark))
        if scratch in svg:
            sys.exit("the picture names a folder of this machine")
    target = PICTURES / ("review.svg" if is_dark else "review-light.svg")
    target.write_text(svg)
    print(f"{target.relative_to(Path(__file__).parents[1])}: {len(svg) / 1000:.0f} kB")


if __name__ == "__main__":
    main()

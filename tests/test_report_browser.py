"""The page in a real browser, off the network: no console error, pictures drawn, nothing cut."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import msgspec
import pytest
from make_patterns import make_patterns

from eroica.report import html
from eroica.report.content import Options, document
from eroica.report.material import load

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--metrics-recording-only"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--no-pings"),
    *("--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000"),
]
# Put into a copy of the page, whose policy is lifted for it; the page itself has no script.
PROBE = """
<script>
const boxes = [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect());
const links = [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href'));
const result = {
  pictures: boxes.length,
  small: boxes.filter(b => b.width < 200 || b.height < 60).length,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  dead: links.filter(l => !document.getElementById(l.slice(1))),
  sections: document.querySelectorAll('main > section').length,
};
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = JSON.stringify(result);
document.body.appendChild(out);
</script></body>"""


def opened(tmp_path, text, width, *arguments):
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},1400",
        *arguments,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rich_page(saved_incident):
    material = load(saved_incident("slow"))
    hostile = "<img src=x onerror=console.error('pwned')>$x_1$ " + "long" * 60
    incident = msgspec.structs.replace(material.incident, not_seen=(hostile,), source=hostile)
    material = replace(material, incident=incident, patterns=make_patterns(8, (2,)))
    return html.render_document(document(material, Options()))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["stuck", "slow"])
def test_the_page_lays_out_wide_and_narrow(saved_incident, tmp_path, name, width):
    text = rich_page(saved_incident) if name == "slow" else html.render(saved_incident(name))
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", text)
    done = opened(tmp_path, probed.replace("</body>", PROBE), width, "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    result = json.loads(found.group(1))
    assert result["pictures"] == text.count("<svg")
    assert result["small"] == 0 and result["dead"] == []
    assert result["overflow"] <= 0
    assert result["sections"] >= 6


def test_the_page_says_nothing_to_the_console(saved_incident, tmp_path):
    done = opened(tmp_path, rich_page(saved_incident), 1280, "--dump-dom")
    assert "<h1>" in done.stdout
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert said == []


def test_the_page_prints(saved_incident, tmp_path):
    out = tmp_path / "page.pdf"
    done = opened(
        tmp_path,
        html.render(saved_incident("stuck")),
        1280,
        "--no-pdf-header-footer",
        f"--print-to-pdf={out}",
    )
    assert out.exists(), done.stderr[-2000:]
    pages = len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
    assert 1 <= pages <= 5

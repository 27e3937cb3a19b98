"""Renews scripts and styles of the example pages in docs; their recordings stay.

python -m scripts.example_pages
"""

import json
import re
from pathlib import Path

from app.extensions.console.page import page_with

PAGES = [Path("docs") / name for name in ("console-example.html", "compare-routing.html")]
RECORDING = re.compile(r'<script type="application/json" id="recording">(.*?)</script>', re.DOTALL)


def renewed(page: str) -> str:
    """Returns the present page of the console with the recording of a saved page."""
    recording = RECORDING.search(page)
    assert recording, "no page with a recording"
    return page_with(json.loads(line) for line in recording[1].split("\n"))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")

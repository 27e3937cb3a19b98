"""The page as one file that needs no server: what it shows is a recording inside of it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable

from msgspec.json import Encoder

from app.console.frames import Frame, Picture
from app.console.page import FOLDER, SCRIPTS, STYLES

_encode = Encoder().encode
LINKS = re.compile(r'<(?:script defer src|link rel="stylesheet" href)="console/[^>]*>(?:</script>)?\n')


def report_of(picture: Picture, frames: Iterable[Frame]) -> str:
    """HTML. Its policy allows the scripts and styles that are in it, by their hashes, and nothing else."""
    html = (FOLDER / "index.html").read_text("utf-8")
    styles, scripts = map(_joined, (STYLES, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(styles)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>\n'
    # In JSON "<" stands in texts only, where it may be written so; the recording cannot end its element then.
    lines = (_encode(item).decode().replace("<", "\\u003c") for item in (picture, *frames))
    recording = '<script type="application/json" id="recording">' + "\n".join(lines) + "</script>\n"
    html = LINKS.sub("", html).replace("</title>\n", f"</title>\n{head}")
    return html.replace("</body>", f"{recording}<script>{scripts}</script>\n</body>")


def _joined(names: Iterable[str]) -> str:
    return "\n".join((FOLDER / name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

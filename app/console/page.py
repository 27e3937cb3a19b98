"""The console page:

files of the folder `page` as routes, or one file with a recording, for offline use.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from msgspec.json import Encoder

from app.console.bars import Frame, Picture
from app.console.compare import Comparison
from app.serving.http.context import RequestContext
from app.serving.http.errors import not_found
from app.serving.http.response import Response
from app.serving.http.route import Route, get

FOLDER = Path(__file__).with_name("page")
SCRIPTS = (
    "model.js", "past.js", "recorder.js", "draw.js", "axis.js", "density.js", "bars.js", "steps.js",
    "blocks.js", "charts.js", "summary.js", "why.js", "detail.js", "knobs.js", "strip.js", "panels.js",
    "share.js", "compare.js", "main.js",
)  # fmt: skip
"""Scripts in the order of their dependencies."""
STYLES = ("console.css",)
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No other origins, and no inline script or style: prompts stay text."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """Returns the routes of the page and its files: without a key, as they hold no secrets."""
    files = {name: FOLDER / name for name in ("index.html", *STYLES, *SCRIPTS)}

    def page(context: RequestContext) -> Response:
        """The page."""
        return served(files["index.html"], context)

    def file(context: RequestContext) -> Response:
        """A script or a style of the page; `report.html` is a page without a recording yet, for
        *Save*.
        """
        if context.params["file"] == "report.html":
            return Response(page_with(()).encode(), 200, HEADERS, TYPES[".html"])
        path = files.get(context.params["file"])
        if path is None:
            raise not_found("The console has no such file.")
        return served(path, context)

    return [get("/console", page), get("/console/{file}", file)]


def served(path: Path, context: RequestContext) -> Response:
    """Returns the file, or status 304 when the browser has it already."""
    data = path.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers = {**HEADERS, "ETag": tag}
    if context.headers.get("if-none-match") == tag:
        return Response(b"", 304, headers)
    return Response(data, 200, headers, TYPES[path.suffix])


_encode = Encoder().encode
LINKS = re.compile(
    r'<(?:script defer src|link rel="stylesheet" href)="console/[^>]*>(?:</script>)?\n'
)


def report_of(picture: Picture, frames: Iterable[Frame]) -> str:
    """Returns HTML with a recording."""
    return page_with((picture, *frames))


def comparison_of(
    comparison: Comparison, runs: Mapping[str, tuple[Picture, Iterable[Frame]]]
) -> str:
    """Returns HTML with the recordings of two runs, by name."""
    lines = {name: [picture, *frames] for name, (picture, frames) in runs.items()}
    counts = [(name, len(its)) for name, its in lines.items()]
    return page_with(({"comparison": comparison, "runs": counts}, *chain(*lines.values())))


def page_with(items: Iterable[object]) -> str:
    """Returns the page with a recording of these lines.

    Its policy allows its scripts and styles by hash.
    """
    html = (FOLDER / "index.html").read_text("utf-8")
    styles, scripts = (
        "\n".join((FOLDER / name).read_text("utf-8") for name in names)
        for names in (STYLES, SCRIPTS)
    )
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(styles)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>\n'
    )
    # Escaping "<", which JSON has only within strings, keeps the recording from closing its
    # element.
    lines = (_encode(item).decode().replace("<", "\\u003c") for item in items)
    recording = '<script type="application/json" id="recording">' + "\n".join(lines) + "</script>\n"
    html = LINKS.sub("", html).replace("</title>\n", f"</title>\n{head}")
    return html.replace("</body>", f"{recording}<script>{scripts}</script>\n</body>")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

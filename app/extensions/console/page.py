"""The console page: its files as routes, or one file with a recording for offline use."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.json import Encoder

from app.core.server.http.context import RequestContext
from app.core.server.http.errors import not_found
from app.core.server.http.response import Response
from app.core.server.http.route import Route, get
from app.extensions.console.compare import Comparison
from app.extensions.console.frames import Frame, Picture

FOLDER = Path(__file__).with_name("page")
SCRIPTS = (
    "model.js",
    "past.js",
    "recorder.js",
    "scale.js",
    "draw.js",
    "axis.js",
    "filter.js",
    "table.js",
    "density.js",
    "moments.js",
    "bars.js",
    "sums.js",
    "steps.js",
    "blocks.js",
    "tiles.js",
    "curves.js",
    "spreads.js",
    "heat.js",
    "routes.js",
    "summary.js",
    "why.js",
    "detail.js",
    "knobs.js",
    "strip.js",
    "panels.js",
    "share.js",
    "quantiles.js",
    "lessons.js",
    "compare.js",
    "main.js",
)
"""Scripts in the order of their dependencies."""
STYLES = ("console.css",)
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No other origins, and no inline script or style: prompts stay text."""
LINKS = re.compile(
    r'<(?:script defer src|link rel="stylesheet" href)="console/[^>]*>(?:</script>)?\n'
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

_encode = Encoder().encode


def routes() -> list[Route]:
    """Returns the routes of the page and its files. They need no key, as they hold no secrets."""
    files = {name: FOLDER / name for name in ("index.html", *STYLES, *SCRIPTS)}

    def page(context: RequestContext) -> Response:
        """The page."""
        return serve_file(files["index.html"], context)

    def file(context: RequestContext) -> Response:
        """A script or a style of the page; *Save* fills `report.html` with a recording."""
        if context.params["file"] == "report.html":
            return Response(page_with(()).encode(), 200, HEADERS, CONTENT_TYPES[".html"])
        path = files.get(context.params["file"])
        if path is None:
            raise not_found("The console has no file with this name.")
        return serve_file(path, context)

    return [get("/console", page), get("/console/{file}", file)]


def serve_file(path: Path, context: RequestContext) -> Response:
    """Returns the file, or status 304 when the browser has it already."""
    data = path.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers = {**HEADERS, "ETag": tag}
    if context.headers.get("if-none-match") == tag:
        return Response(b"", 304, headers)
    return Response(data, 200, headers, CONTENT_TYPES[path.suffix])


def report_of(picture: Picture, frames: Iterable[Frame]) -> str:
    """Returns HTML with a recording."""
    return page_with((picture, *frames))


def comparison_of(
    comparison: Comparison, runs: Mapping[str, tuple[Picture, Iterable[Frame]]]
) -> str:
    """Returns HTML with the recordings of two runs, by name."""
    lines: list[object] = []
    counts: list[tuple[str, int]] = []
    for name, (picture, frames) in runs.items():
        recording = [picture, *frames]
        counts.append((name, len(recording)))
        lines += recording
    return page_with(({"comparison": comparison, "runs": counts}, *lines))


def page_with(items: Iterable[object]) -> str:
    """Returns the page with a recording of these lines.

    Its policy allows its scripts and styles by hash.
    """
    html = (FOLDER / "index.html").read_text("utf-8")
    styles = _joined_files(STYLES)
    scripts = _joined_files(SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(styles)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
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


def _joined_files(names: Iterable[str]) -> str:
    return "\n".join((FOLDER / name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

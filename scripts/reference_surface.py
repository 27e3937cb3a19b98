"""The generated pages of routes and metric families, from servers with every feature."""

import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.core.application import create_app
from app.core.server.flask.application import METRICS
from app.core.settings import load
from scripts.generated_page import Page, Section, code, one_line
from scripts.surface import EVERY_FEATURE, SCRIPT, is_flag

CONFIGURATIONS = (
    ("--dialect=sglang",),
    (*EVERY_FEATURE, "--simulator-metrics"),
    ("--task=pooling",),
    ("--task=transcription",),
)
METHODS = ("get", "post", "put", "patch", "delete")
OPERATOR_PATHS = ("/admin", "/console")
AREAS = {
    "SGLang": (
        r"/(generate|abort_request|(get_)?model_info|get_server_info|get_load|v1/loads|"
        r"health_generate|flush_cache)$"
    ),
    "OpenAI": r"/v1/(chat|completions|models|responses|embeddings|audio)",
    "Anthropic and Cohere": r"/v1/messages|/cohere",
    "Pooling": r"/v\d/(score|rerank|embed|classify)|/(pooling|score|rerank|classify)$|/v1/rerank",
    "Tokens and rendering": r"/(de)?tokeniz|/inference|.*render",
    "Health and metrics": r"/(health|ping|ready|load|version|metrics)",
    "KV events and index": r"/kv|/score_|/query",
    "Documents": r"/$|/docs|/redoc|/openapi",
}
"""Patterns of paths by heading; the first match decides."""
OTHER_AREA = "Other routes of vLLM"
HELP = re.compile(r"^# HELP (\S+) (.*)$", re.MULTILINE)
TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*?)(?:_bucket|_sum|_count)?\{(.*)\} ", re.MULTILINE)
LABEL = re.compile(r'(\w+)="')
GROUPS = {
    "vLLM": "vllm:",
    "SGLang": "sglang:",
    "HTTP": "http_",
    "Understudy": "understudy_",
    "KV index": "kvcache_",
    "Process": "",
}
"""Beginnings of the names of metric families by heading."""


@cache
def documents() -> tuple[tuple[dict[str, Any], str], ...]:
    """Returns the OpenAPI document and the metrics page of each configuration."""
    read = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.yaml"
        script.write_text(SCRIPT, "utf-8")
        for flags in CONFIGURATIONS:
            arguments = ["--force-dummy-tokenizer", "--seed=7", f"--script={script}", *flags]
            client = create_app(load([*filter(is_flag, arguments)], {})).test_client()
            page = client.get(METRICS).get_data(as_text=True)
            read.append((client.get("/openapi.json").get_json(), page))
    return tuple(read)


def summaries() -> dict[str, dict[str, str]]:
    """Returns the methods of each path, and their summaries."""
    paths: dict[str, dict[str, str]] = {}
    for document, _ in documents():
        for path, methods in document["paths"].items():
            for method in METHODS:
                if method in methods and not (path == METRICS and method != "get"):
                    summary = one_line(methods[method].get("summary", ""))
                    paths.setdefault(path, {})[method.upper()] = summary
    return paths


def routes_page() -> Page:
    """Returns the page of the routes for clients."""
    areas: dict[str, dict[str, dict[str, str]]] = {name: {} for name in (*AREAS, OTHER_AREA)}
    for path, methods in summaries().items():
        if not path.startswith(OPERATOR_PATHS):
            areas[_area(path)][path] = methods
    sections = [
        Section(name, ("route", "method", "answer"), route_rows(paths))
        for name, paths in areas.items()
    ]
    return Page("reference-routes.md", "Routes", sections)


def admin_page() -> Page:
    """Returns the page of the routes for operators."""
    paths = {
        path: methods for path, methods in summaries().items() if path.startswith(OPERATOR_PATHS)
    }
    console = {path: methods for path, methods in paths.items() if "/console" in path}
    others = {path: methods for path, methods in paths.items() if path not in console}
    columns = ("route", "method", "answer")
    sections = [
        Section("Operators and tests", columns, route_rows(others)),
        Section("Console", columns, route_rows(console)),
    ]
    return Page("reference-admin.md", "Routes of operators", sections)


def route_rows(paths: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns a row for each path. Methods with the same summary share its text."""
    rows = []
    for path, methods in sorted(paths.items()):
        texts = list(dict.fromkeys(methods.values()))
        if len(texts) > 1:
            texts = [f"{method}: {text}" for method, text in methods.items()]
        rows.append((code(path), " ".join(methods), "<br>".join(texts)))
    return rows


def metrics_page() -> Page:
    """Returns the page of the metric families."""
    helps: dict[str, str] = {}
    kinds: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for _, page in documents():
        helps |= dict(HELP.findall(page))
        kinds |= dict(TYPE.findall(page))
        for name, text in SAMPLE.findall(page):
            labels.setdefault(name, set()).update(LABEL.findall(text))
    families = [name for name in helps if not name.endswith("_created")]
    sections = []
    for heading, beginning in GROUPS.items():
        members = [name for name in families if name.startswith(beginning)]
        families = [name for name in families if name not in members]
        rows = [
            (code(name), _kind(kinds[name], labels.get(name, ())), one_line(helps[name]))
            for name in sorted(members)
        ]
        sections.append(Section(heading, ("family", "type and labels", "meaning"), rows))
    return Page("reference-metrics.md", "Metrics reference", sections)


def _area(path: str) -> str:
    for name, pattern in AREAS.items():
        if re.match(pattern, path):
            return name
    return OTHER_AREA


def _kind(kind: str, labels: Iterable[str]) -> str:
    names = " ".join(code(label) for label in sorted(labels) if label not in ("le", "quantile"))
    return f"{kind}<br>{names}".removesuffix("<br>")

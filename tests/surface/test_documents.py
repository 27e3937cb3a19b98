"""Every route is in the documentation, with an example."""

from __future__ import annotations

import re

from app import create_app
from config.loader import load
from tests.running_server import ROOT

EVERYTHING = (
    *("--server-dev-mode", "--profiling", "--enable-scale-out", "--allow-runtime-lora-updating"),
    *("--enable-responses-store", "--force-dummy-tokenizer", "--kv-index", "--console"),
    *("--enable-tokenizer-info-endpoint", "--embeddings-with-chat"),
)
OTHER_NAMES = {
    "/stop_profile",
    "/inference/v1/abort_requests",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/ping",
    "/health/ready",
}
"""Named beside another route that does the same and has the example."""


def routes() -> set[str]:
    """The paths of every route that any setting brings."""
    paths: set[str] = set()
    for task in ("generate", "pooling"):
        app = create_app(load([*EVERYTHING, "--task", task], {}))
        paths |= {rule.rule for rule in app.url_map.iter_rules()}
    return {re.sub(r"<(?:\w+:)?\w+>", "{id}", path) for path in paths}


def test_every_route_is_documented() -> None:
    documents = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert {path for path in routes() if f"{path}`" not in documents} == set()


def test_every_route_has_an_example() -> None:
    documents = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    examples = set(re.findall(r"curl\b[^\n`]*?localhost:8000(/[\w/{}.-]*)", documents.replace("\\\n", " ")))
    examples = {re.sub(r"/(?:resp_\w+|main\.js|17)(?=$|/)", "/{id}", path) for path in examples}
    variants = {path.removeprefix("/v1").removeprefix("/v2") for path in examples}
    missing = {path for path in routes() - OTHER_NAMES if path not in examples and path not in variants}
    missing = {path for path in missing if path.removeprefix("/v1").removeprefix("/v2") not in variants}
    assert missing == set()

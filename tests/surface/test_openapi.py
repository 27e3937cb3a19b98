"""GET /openapi.json tells every route, and schemas that describe what the routes take."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import requests

from app import create_app
from config.loader import load
from tests.running_server import RunningServer
from tests.surface.test_documents import EVERYTHING, routes


@pytest.fixture(scope="module")
def told(server: RunningServer) -> dict[str, Any]:
    document: dict[str, Any] = requests.get(f"{server.url}/openapi.json", timeout=20).json()
    return document


def documented(*flags: str) -> dict[str, Any]:
    """The document of an application with these flags."""
    application = create_app(load([*EVERYTHING, *flags], {}))
    document: dict[str, Any] = json.loads(application.test_client().get("/openapi.json").data)
    return document


def test_every_route_is_told() -> None:
    paths: set[str] = set()
    for flags in (("--task", "generate"), ("--task", "pooling")):
        paths |= set(documented(*flags)["paths"])
    assert {re.sub(r"\{\w+\}", "{id}", path) for path in paths} == routes()


def test_an_indexer_tells_its_own() -> None:
    assert {"/score_tokens", "/kv/index", "/health"} <= set(documented("--role", "indexer")["paths"])


def test_schemas_are_schemas_and_references_lead_somewhere(told: dict[str, Any]) -> None:
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    found = re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(told))
    assert found and set(found) <= set(told["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "good", "wrong"),
    [
        ("/v1/chat/completions", {"messages": [], "n": 2}, {"messages": [], "n": "two"}),
        ("/v1/completions", {"prompt": ["a", "b"]}, {"prompt": 5}),
        ("/tokenize", {"prompt": "a"}, {"text": "a"}),
    ],
)
def test_a_schema_takes_what_its_route_takes(
    told: dict[str, Any], path: str, good: dict[str, Any], wrong: dict[str, Any]
) -> None:
    schema = told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    judge = jsonschema.Draft202012Validator({**schema, "components": told["components"]})
    assert judge.is_valid(good) and not judge.is_valid(wrong)


def test_head_has_the_head_alone(server: RunningServer) -> None:
    for path in ("/openapi.json", "/metrics"):
        got = requests.head(server.url + path, timeout=20)
        assert got.status_code == 200 and got.content == b""
        assert int(got.headers["Content-Length"]) > 1000

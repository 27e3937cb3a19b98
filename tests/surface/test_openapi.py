"""GET /openapi.json describes every route; what it promises is what is answered. GET / says what this is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from flask.testing import FlaskClient
from jsonschema import Draft202012Validator
from werkzeug.test import TestResponse

from app.serving.api.openapi.operations import OPERATIONS
from app.serving.flask.application import Understudy
from app.wiring.factory import create_app
from config import VERSION
from config.loader import load
from tests.running_server import ROOT

KINDS: Mapping[str, tuple[str, ...]] = {
    "generate": (
        *(
            "--server-dev-mode",
            "--weight-transfer",
            "--profiling",
            "--enable-scale-out",
            "--allow-runtime-lora-updating",
        ),
        *("--kv-index", "--enable-kvcache", "--enable-responses-store", "--max-model-len", "512"),
        *("--fake-metrics", '{"running-requests": 1}'),
        *("--enable-tokenizer-info-endpoint", "--embeddings-with-chat"),
    ),
    "pooling": ("--task", "pooling"),
    "script": ("--script", str(ROOT / "examples" / "scripts" / "weather.yaml")),
    "indexer": ("--role", "indexer", "--kv-index-bind", "tcp://127.0.0.1:0"),
}
NEEDS_MORE = ("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/stats")
"""Need a path that exists, and are asked below; the last one needs a model that computes (tests/remote)."""
SESSION = (
    *("/start_weight_update", "/start_draft_weight_update", "/update_weights", "/finish_weight_update"),
    "/shutdown_weight_transfer_engine",
)
"""Answer 500, as vLLM does, outside of a session: tests/surface/test_weights.py."""
ENDING = ("/admin/drain", "/sleep", "/pause", "/release_kv_cache_memory")
"""After them a server answers nothing more of interest; the last is 500, as vLLM's, without a pause."""


FIELDS: Mapping[str, Mapping[str, list[str]]] = json.loads(
    (ROOT / "tests" / "surface" / "vllm_fields.json").read_text("utf-8")
)


@cache
def application(kind: str) -> Understudy:
    return create_app(load(["--seed", "1", "--force-dummy-tokenizer", *KINDS[kind]], {}))


def document(client: FlaskClient) -> Any:
    return client.get("/openapi.json").get_json()


def operations(kind: str) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document(application(kind).test_client())["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def is_valid(value: Any, schema: Any, whole: Any) -> None:
    Draft202012Validator({**schema, "components": whole["components"]}).validate(value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_route_is_described(kind: str) -> None:
    routes = application(kind).routes
    served = {f"{method} {route.path}" for route in routes for method in route.methods if method != "HEAD"}
    assert served <= set(OPERATIONS), "add them to app/serving/api/openapi/operations.py"
    assert {f"{method} {path}" for method, path, _ in operations(kind)} == served


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_is_whole(kind: str) -> None:
    whole = document(application(kind).test_client())
    assert (whole["openapi"], whole["info"]["version"]) == ("3.1.0", VERSION)
    for schema in whole["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    referred = set(json.dumps(whole).split("#/components/schemas/")[1:])
    names = {text.partition('"')[0] for text in referred}
    assert names == set(whole["components"]["schemas"])
    ids = [operation["operationId"] for _, _, operation in operations(kind)]
    assert len(set(ids)) == len(ids)
    assert all(operation["summary"] for _, _, operation in operations(kind))


def properties(schema: Any, whole: Any) -> set[str]:
    """The fields of a body, of whichever of its kinds."""
    schemas = whole["components"]["schemas"]
    named = [kind["$ref"].rpartition("/")[2] for kind in schema.get("anyOf", [schema])]
    return {field for name in named for field in schemas[name]["properties"]}


@pytest.mark.parametrize("route", FIELDS)
def test_what_vllm_takes_is_described(route: str) -> None:
    """Fields and queries that vLLM 0.32 declares: `vllm_fields.json`."""
    method, path = route.split()
    kind = "generate" if path in {route.path for route in application("generate").routes} else "pooling"
    whole = document(application(kind).test_client())
    operation = whole["paths"][path][method.lower()]
    assert {given["name"] for given in operation["parameters"]} >= set(FIELDS[route].get("query", ()))
    if body := FIELDS[route].get("body"):
        content = operation["requestBody"]["content"]["application/json"]
        assert set(body) - properties(content["schema"], whole) == set()


def test_texts_are_strings_and_of_streams_nothing_is_said() -> None:
    paths = document(application("generate").test_client())["paths"]

    def content(path: str, method: str) -> Any:
        return paths[path][method]["responses"]["200"]["content"]

    assert content("/metrics", "get")["text/plain"] == {"schema": {"type": "string"}}
    assert content("/v1/chat/completions", "post")["text/event-stream"] == {}


def answer(client: FlaskClient, method: str, path: str) -> tuple[TestResponse, Any]:
    operation = document(client)["paths"][path][method.lower()]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    return client.open(path, method=method, json=body), operation


@pytest.mark.parametrize(
    ("method", "path"),
    [told.split() for told in OPERATIONS if told.partition(" ")[2] not in NEEDS_MORE + SESSION],
)
def test_every_example_is_taken_and_answered_as_it_is_described(method: str, path: str) -> None:
    kinds = (kind for kind in KINDS if (method, path) in {told[:2] for told in operations(kind)})
    app = application(next(kinds)) if path not in ENDING else create_app(load(["--server-dev-mode"], {}))
    client = app.test_client()
    if path == "/release_kv_cache_memory":
        client.post("/pause")
    if path == "/v1/unload_lora_adapter":
        client.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "/sql"})
    if path == "/adapters/{adapter_name}":
        client.post("/adapters", json={"name": "{adapter_name}", "src": "/sql"})
    if path in ("/v1/load_lora_adapter", "/adapters"):
        client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
    told, operation = answer(client, method, path)
    whole = document(client)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        is_valid(content["example"], content["schema"], whole)
    assert told.status_code < 300, told.text
    described = operation["responses"][str(told.status_code)].get("content", {})
    if told.data:
        kind_of = told.headers.get("Content-Type", "text/plain").partition(";")[0]
        assert kind_of in described
        if kind_of == "application/json":
            is_valid(told.get_json(), described[kind_of]["schema"], whole)


def test_a_kept_response_is_as_it_is_described() -> None:
    client = application("generate").test_client()
    whole = document(client)
    made = client.post("/v1/responses", json={"input": "hello", "background": True}).get_json()
    for method, path in (
        ("get", "/v1/responses/{response_id}"),
        ("post", "/v1/responses/{response_id}/cancel"),
    ):
        told = client.open(path.replace("{response_id}", made["id"]), method=method.upper())
        described = whole["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        if told.status_code == 200:
            is_valid(told.get_json(), described, whole)
        assert told.status_code == 200 or (method == "post" and told.status_code == 400)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": 1}),
        ("/v1/chat/completions", {"model": "none", "messages": []}),
        ("/v1/messages", {"messages": 1}),
        ("/v1/messages", None),
        ("/v1/responses", {"input": 1}),
        ("/tokenize", {}),
        ("/v1/load_lora_adapter", {"lora_name": ""}),
    ],
)
def test_errors_are_as_they_are_described(path: str, body: object) -> None:
    client = application("generate").test_client()
    told = client.post(path, json=body) if body is not None else client.post(path)
    assert 400 <= told.status_code < 500
    whole = document(client)
    described = whole["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    is_valid(told.get_json(), described, whole)


def test_nothing_is_described_where_documents_are_switched_off() -> None:
    client = create_app(load(["--disable-fastapi-docs"], {})).test_client()
    assert {client.get(path).status_code for path in ("/openapi.json", "/docs", "/redoc")} == {404}
    assert "openapi" not in client.get("/").get_json()


def test_a_proxy_is_told_of() -> None:
    client = create_app(load(["--root-path", "/models/one/"], {})).test_client()
    assert document(client)["servers"] == [{"url": "/models/one"}]
    assert client.get("/models/one/openapi.json").status_code == 200


def test_the_head_alone_can_be_asked_for() -> None:
    told = application("generate").test_client().head("/openapi.json")
    assert (told.status_code, told.data) == (200, b"")
    assert told.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_people_may_read_it(path: str) -> None:
    client = create_app(load(["--root-path", "/one"], {})).test_client()
    told, head = client.get(path), client.head(path)
    assert told.text.count("/one/openapi.json") == 3
    assert told.headers["Content-Type"] == head.headers["Content-Type"] == "text/html; charset=utf-8"
    assert (head.data, head.headers["Content-Length"]) == (b"", str(len(told.data)))
    assert client.post(path).headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("method", ["POST", "PUT", "OPTIONS", "HEAD"])
def test_the_root_is_there_for_a_look_alone(method: str) -> None:
    told = application("generate").test_client().open("/", method=method)
    assert told.status_code == 404 and told.data in (b'{"detail":"Not Found"}', b"")


def test_the_root_says_what_this_is_and_where_to_look() -> None:
    told = application("generate").test_client().get("/").get_json()
    assert (told["name"], told["version"], told["plays"]) == ("understudy", VERSION, "vLLM 0.32.0")
    assert told["models"] == ["understudy-tiny"]
    assert {"GET /health", "POST /v1/chat/completions", "DELETE /admin/verdict"} <= set(told["routes"])
    assert all(f"GET {told[name]}" in told["routes"] for name in ("openapi", "health", "metrics"))
    indexer = application("indexer").test_client().get("/").get_json()
    assert indexer["plays"] == "an index of KV blocks"
    assert "POST /v1/chat/completions" not in indexer["routes"]

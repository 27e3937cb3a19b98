"""GET /openapi.json describes every route; what it promises is what is answered.

GET / says what this is.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

import pytest
from flask.testing import FlaskClient
from jsonschema import Draft202012Validator

from app.core.built_in import present_extensions
from app.core.server.flask.application import Understudy
from config import VERSION
from scripts.surface import API_FLAGS, absent_paths, is_flag
from tests.application import app_of
from tests.present import is_present
from tests.running_server import ROOT

FLAGS: Mapping[str, tuple[str, ...]] = {
    "generate": (
        *API_FLAGS,
        "--enable-kvcache",
        "--journal=10",
        "--max-model-len=512",
        "--weight-transfer",
        '--fake-metrics={"running-requests": 1}',
    ),
    "later version": (*API_FLAGS, "--vllm-version=0.33"),
    "pooling": ("--task=pooling",),
    "script": (f"--script={ROOT / 'examples' / 'scripts' / 'weather.yaml'}",),
    "indexer": ("--role=indexer", "--kv-index-bind=tcp://127.0.0.1:0"),
}
REQUIRED = {"pooling": "pooling", "script": "scripts", "indexer": "kv_index"}
"""Kind -> the extension that it needs."""
PRESENT = {extension.name for extension in present_extensions()}
KINDS = [kind for kind in FLAGS if REQUIRED.get(kind, "openapi") in PRESENT]
NEEDS_MORE = ("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/stats")
"""Need a path that exists, and are asked below; the last one needs a model that computes
(tests/extensions/llm/remote).
"""
SESSION = (
    *(
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ),
    "/shutdown_weight_transfer_engine",
)
"""Answer 500, as vLLM does, outside of a session: tests/extensions/devmode/test_weights.py."""
ENDING = ("/admin/drain", "/admin/choke", "/sleep", "/pause", "/release_kv_cache_memory")
"""After them a server answers nothing more of interest; the last is 500, as vLLM's, without a
pause.
"""


FIELDS: Mapping[str, Mapping[str, list[str]]] = json.loads(
    (ROOT / "tests" / "extensions" / "openapi" / "vllm_fields.json").read_text("utf-8")
)


@cache
def application(kind: str) -> Understudy:
    return app_of("--seed", "1", "--force-dummy-tokenizer", *filter(is_flag, FLAGS[kind]))


def document(client: FlaskClient) -> Any:
    return client.get("/openapi.json").get_json()


@cache
def described(kind: str) -> Any:
    return document(application(kind).test_client())


def operations(kind: str) -> dict[str, Any]:
    paths = described(kind)["paths"].items()
    return {
        f"{method.upper()} {path}": operation
        for path, methods in paths
        for method, operation in methods.items()
    }


def is_valid(value: Any, schema: Any, whole: Any) -> None:
    Draft202012Validator({**schema, "components": whole["components"]}).validate(value)


@cache
def check_schema(text: str) -> None:
    """Checks a schema, in JSON, once for all documents that have it."""
    Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("kind", KINDS)
def test_openapi_document_describes_every_route(kind: str) -> None:
    routes = application(kind).routes
    served = {
        f"{method} {route.path}" for route in routes for method in route.methods if method != "HEAD"
    }
    whole, described_operations = described(kind), operations(kind)
    assert set(described_operations) == served
    assert (whole["openapi"], whole["info"]["version"]) == ("3.1.0", VERSION)
    for schema in whole["components"]["schemas"].values():
        check_schema(json.dumps(schema))
    referred = json.dumps(whole).split("#/components/schemas/")[1:]
    assert {text.partition('"')[0] for text in referred} == set(whole["components"]["schemas"])
    assert len({operation["operationId"] for operation in described_operations.values()}) == len(
        described_operations
    )
    assert all(operation["summary"] for operation in described_operations.values())


def test_openapi_document_describes_the_fields_that_vllm_declares() -> None:
    """Fields and queries that vLLM 0.32 declares: `vllm_fields.json`."""
    absent = absent_paths()
    for route, fields in FIELDS.items():
        if route.split()[1] in absent:
            continue
        kind = "generate" if route in operations("generate") else "pooling"
        operation, schemas = operations(kind)[route], described(kind)["components"]["schemas"]
        assert {parameter["name"] for parameter in operation["parameters"]} >= set(
            fields.get("query", ())
        ), route
        if body := fields.get("body"):
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            names = [
                alternative["$ref"].rpartition("/")[2]
                for alternative in schema.get("anyOf", [schema])
            ]
            known_fields = {field for name in names for field in schemas[name]["properties"]}
            assert set(body) - known_fields == set(), route


ADAPTER = {"lora_name": "sql", "lora_path": "/sql"}
BEFORE: Mapping[str, tuple[str, Any]] = {
    "/release_kv_cache_memory": ("/pause", None),
    "/v1/unload_lora_adapter": ("/v1/load_lora_adapter", ADAPTER),
    "/adapters/{adapter_name}": ("/adapters", {"name": "{adapter_name}", "src": "/sql"}),
    "/v1/load_lora_adapter": ("/v1/unload_lora_adapter", {"lora_name": "sql"}),
    "/adapters": ("/v1/unload_lora_adapter", {"lora_name": "sql"}),
}
"""What a route needs before its example can succeed."""


@pytest.mark.parametrize("kind", KINDS)
def test_responses_to_all_openapi_examples_match_the_schema(kind: str) -> None:
    whole = described(kind)
    for name, operation in operations(kind).items():
        method, path = name.split()
        kinds_before = takewhile(lambda other: other != kind, KINDS)
        if path in NEEDS_MORE + SESSION or any(name in operations(other) for other in kinds_before):
            continue
        app = application(kind) if path not in ENDING else app_of("--server-dev-mode")
        client = app.test_client()
        if path in BEFORE:
            client.post(BEFORE[path][0], json=BEFORE[path][1])
        example = None
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            example = content["example"]
            is_valid(example, content["schema"], whole)
        answer = client.open(path, method=method, json=example)
        assert answer.status_code < 300, (name, answer.text)
        contents = operation["responses"][str(answer.status_code)].get("content", {})
        kind_of = answer.headers.get("Content-Type", "text/plain").partition(";")[0]
        assert not answer.data or kind_of in contents, name
        if kind_of == "application/json":
            is_valid(answer.get_json(), contents[kind_of]["schema"], whole)


REFUSED: Sequence[tuple[str, Any]] = (
    ("/v1/chat/completions", {"messages": 1}),
    ("/v1/chat/completions", {"model": "none", "messages": []}),
    ("/v1/messages", {"messages": 1}),
    ("/v1/messages", None),
    ("/v1/responses", {"input": 1}),
    ("/tokenize", {}),
    ("/v1/load_lora_adapter", {"lora_name": ""}),
)
"""Paths and bodies of requests that are answered by an error."""


def test_errors_match_the_schemas_of_their_routes() -> None:
    client = application("generate").test_client()
    absent = absent_paths()
    for path, body in REFUSED:
        if path in absent:
            continue
        answer = client.post(path, json=body) if body is not None else client.post(path)
        assert 400 <= answer.status_code < 500
        content = operations("generate")[f"POST {path}"]["responses"]["4XX"]["content"]
        is_valid(answer.get_json(), content["application/json"]["schema"], described("generate"))


def test_openapi_document_is_absent_if_the_docs_are_disabled() -> None:
    client = app_of("--disable-fastapi-docs").test_client()
    assert {client.get(path).status_code for path in ("/openapi.json", "/docs", "/redoc")} == {404}
    assert "openapi" not in client.get("/").get_json()


def test_openapi_document_is_served_behind_a_proxy_path() -> None:
    client = app_of("--root-path", "/models/one/").test_client()
    assert document(client)["servers"] == [{"url": "/models/one"}]
    assert client.get("/models/one/openapi.json").status_code == 200
    head = client.head("/openapi.json")
    assert (head.status_code, head.data, head.headers["Content-Type"]) == (
        200,
        b"",
        "application/json",
    )
    for path in ("/docs", "/redoc"):
        page, head = client.get(path), client.head(path)
        assert page.text.count("/one/openapi.json") == 3
        assert (
            page.headers["Content-Type"]
            == head.headers["Content-Type"]
            == "text/html; charset=utf-8"
        )
        assert (head.data, head.headers["Content-Length"]) == (b"", str(len(page.data)))
        assert client.post(path).headers["Allow"] == "GET, HEAD"


def test_root_route_lists_the_version_the_models_and_the_routes() -> None:
    client = application("generate").test_client()
    description = client.get("/").get_json()
    assert (description["name"], description["version"], description["plays"]) == (
        "understudy",
        VERSION,
        "vLLM 0.32.0",
    )
    assert description["level"] == "names and proven behavior"
    assert description["models"] == ["understudy-tiny"]
    expected = {"GET /health", "POST /v1/chat/completions"}
    if is_present("adapters"):
        expected.add("DELETE /adapters/{adapter_name}")
    assert expected <= set(description["routes"])
    assert all(
        f"GET {description[name]}" in description["routes"]
        for name in ("openapi", "health", "metrics")
    )
    for method in ("POST", "PUT", "OPTIONS", "HEAD"):
        other = client.open("/", method=method)
        assert other.status_code == 404 and other.data in (b'{"detail":"Not Found"}', b"")

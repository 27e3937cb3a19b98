"""Headers of requests and answers, ids, fingerprints: who asks for what, and who answers."""

import re
from functools import cache
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.core.api.headers import CACHE_THRESHOLD_HEADER, boolean_header, priority_of
from app.core.api.identity import system_fingerprint
from app.core.server.http.errors import ApiError
from app.core.settings import load
from tests.application import app_of, request

COMPLETION = {"prompt": [5] * 33, "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
HEADERS = ("x-inference-pod", "x-inference-port", "x-inference-namespace")


@cache
def client_of(*flags: str) -> FlaskClient:
    return app_of(*flags, "--force-dummy-tokenizer").test_client()


def post(
    body: dict[str, Any],
    *flags: str,
    path: str = "/v1/completions",
    headers: dict[str, str] | None = None,
) -> Any:
    return client_of(*flags).post(path, json=body, headers=headers)


def test_response_headers_contain_the_pod_name_port_and_namespace() -> None:
    for flags, expected in (
        ((), [None, None, None]),
        (("--pod-name", "pod-1", "--port", "8123"), ["pod-1", "8123", None]),
        (("--pod-namespace", "team"), [None, None, "team"]),
        (("--pod-name", "pod-1", "--pod-namespace", "team"), ["pod-1", "8000", "team"]),
    ):
        answer = post(COMPLETION, *flags)
        assert [answer.headers.get(name) for name in HEADERS] == expected


def test_request_id_header_overrides_the_id_in_the_body() -> None:
    body_id = {"request_id": "own"}
    header = {"X-Request-Id": "header"}
    for path, body, prefix in (
        ("/v1/completions", COMPLETION, "cmpl"),
        ("/v1/chat/completions", CHAT, "chatcmpl"),
    ):
        assert (
            post(body | body_id, path=path, headers=header)
            .json["id"]
            .startswith(f"{prefix}-header")
        )
        assert post(body | body_id, path=path).json["id"].startswith(f"{prefix}-own")
        fresh = post(body, path=path).json["id"]
        assert fresh.startswith(f"{prefix}-") and len(fresh.removeprefix(f"{prefix}-")) >= 16


def test_system_fingerprint_depends_on_the_mode_and_the_parallel_sizes() -> None:
    for flags, fingerprint in (
        ((), r"vllm-0\.32\.0-[0-9a-f]{8}"),
        (
            ("--tensor-parallel-size=4", "--data-parallel-size=2"),
            r"vllm-0\.32\.0-tp4-dp2-[0-9a-f]{8}",
        ),
        (("--fingerprint-mode=hash", "--tensor-parallel-size=4"), r"vllm-0\.32\.0-[0-9a-f]{8}"),
        (("--fingerprint-mode=custom", "--fingerprint-value=mine"), "mine"),
        (("--fingerprint-mode=custom",), None),
        (("--fingerprint-mode=none",), None),
    ):
        settings = load(flags, {})
        ranks = settings.server.data_parallel_size
        result = system_fingerprint(settings.api, settings.model, ranks)
        assert (
            result is None if fingerprint is None else result and re.fullmatch(fingerprint, result)
        )


def test_priority_header_overrides_the_priority_of_the_request() -> None:
    assert priority_of(request(), 5) == 5
    for header, priority in (("3", 3), ("-7", -7), (" 0 ", 0)):
        assert priority_of(request(headers={"x-vllm-priority": header}), 5) == priority


def test_cache_threshold_header_is_parsed_as_a_boolean() -> None:
    assert boolean_header(request(), CACHE_THRESHOLD_HEADER) is None
    for meant, words in ((True, ("1", "T", "true")), (False, ("0", "f", "FALSE"))):
        for header in words:
            assert (
                boolean_header(
                    request(headers={CACHE_THRESHOLD_HEADER: header}), CACHE_THRESHOLD_HEADER
                )
                is meant
            )


def test_error_for_an_invalid_header_shows_at_most_forty_characters() -> None:
    context = request(headers={"x-vllm-priority": "p" * 50, CACHE_THRESHOLD_HEADER: "t" * 50})
    for letter, read in (
        ("p", lambda: priority_of(context, 0)),
        ("t", lambda: boolean_header(context, CACHE_THRESHOLD_HEADER)),
    ):
        with pytest.raises(ApiError, match=f"got '{letter * 40}'$") as caught:
            read()
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("path", "body", "engine_id"),
    [("/v1/completions", COMPLETION, "cmpl-own-0"), ("/v1/chat/completions", CHAT, "chatcmpl-own")],
)
def test_remote_request_id_contains_the_engine_request_id(
    path: str, body: dict[str, Any], engine_id: str
) -> None:
    fields = {"request_id": "own", "kv_transfer_params": {"do_remote_decode": True}}
    params = post(body | fields, path=path).json["kv_transfer_params"]
    assert re.fullmatch(rf"{engine_id}-[0-9a-f]{{8}}", params["remote_request_id"])

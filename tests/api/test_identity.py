"""Who answers: what headers and ids tell of it, and where a prefill's cache is to be found."""

from __future__ import annotations

from typing import Any

import pytest

from app.factory import create_app
from config.loader import load

COMPLETION = {"prompt": [5] * 33, "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
HEADERS = ("x-inference-pod", "x-inference-port", "x-inference-namespace")


def post(
    body: dict[str, Any], *flags: str, path: str = "/v1/completions", headers: dict[str, str] | None = None
) -> Any:
    return create_app(load(flags, {})).test_client().post(path, json=body, headers=headers)


@pytest.mark.parametrize(
    "flags, expected",
    [
        ((), [None, None, None]),
        (("--pod-name", "pod-1", "--port", "8123"), ["pod-1", "8123", None]),
        (("--pod-namespace", "team"), [None, None, "team"]),
        (("--pod-name", "pod-1", "--pod-namespace", "team"), ["pod-1", "8000", "team"]),
    ],
)
def test_headers_tell_which_pod_answered(flags: tuple[str, ...], expected: list[str | None]) -> None:
    answer = post(COMPLETION, *flags)
    assert [answer.headers.get(name) for name in HEADERS] == expected


@pytest.mark.parametrize(
    "path, body, prefix",
    [("/v1/completions", COMPLETION, "cmpl"), ("/v1/chat/completions", CHAT, "chatcmpl")],
)
def test_the_header_s_id_wins_over_the_body_s_and_that_over_a_fresh_one(
    path: str, body: dict[str, Any], prefix: str
) -> None:
    own, header = {"request_id": "own"}, {"X-Request-Id": "header"}
    assert post(body | own, path=path, headers=header).json["id"].startswith(f"{prefix}-header")
    assert post(body | own, path=path).json["id"].startswith(f"{prefix}-own")
    fresh = post(body, path=path).json["id"]
    assert fresh.startswith(f"{prefix}-") and len(fresh.removeprefix(f"{prefix}-")) >= 16


@pytest.mark.parametrize("tokens, blocks", [(1, [1]), (16, [1]), (17, [1, 2]), (33, [1, 2, 3])])
def test_a_prefill_tells_where_its_blocks_are(tokens: int, blocks: list[int]) -> None:
    wanted = {"do_remote_decode": True}
    body = {"prompt": [5] * tokens, "max_tokens": 1, "kv_transfer_params": wanted}
    told = post(body, "--tensor-parallel-size", "2").json["kv_transfer_params"]
    assert (told["remote_block_ids"], told["tp_size"]) == ([blocks], 2)


@pytest.mark.parametrize("wanted", [None, {}, {"do_remote_decode": False}])
def test_others_tell_nothing_of_their_blocks(wanted: object) -> None:
    answer = post(COMPLETION | {"kv_transfer_params": wanted}).json
    assert answer.get("kv_transfer_params") is None

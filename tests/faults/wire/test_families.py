"""Faults in the API families that are not OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.faults.client import TOKENS, Asker, Got
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

MESSAGES, GENERATE, BATCH = "/v1/messages", "/inference/v1/generate", "/v1/chat/completions/batch"
HI = [{"role": "user", "content": "hi"}]
STOP = "event: message_stop"


@pytest.fixture(scope="module")
def families() -> Iterator[RunningServer]:
    with stressed_server("--enable-scale-out") as server:
        yield server


def ask(server: RunningServer, path: str, stream: bool, fault: str) -> Got:
    asked = {
        MESSAGES: {"model": "understudy-tiny", "messages": HI, "max_tokens": TOKENS, "stream": stream},
        GENERATE: {"token_ids": [1, 2], "sampling_params": {"max_tokens": TOKENS}, "stream": stream},
        BATCH: {"messages": [HI, HI], "max_tokens": TOKENS},
    }[path]
    with Asker(server.port) as asker:
        answer = asker.send(path, asked, X_Fault=fault).answer()
        assert answer is not None
        return answer


def test_messages_lack_their_stop(families: RunningServer) -> None:
    usual = ask(families, MESSAGES, True, "missing-done; nth=9")
    answer = ask(families, MESSAGES, True, "missing-done")
    assert usual.chunks[-1].startswith(STOP)
    assert answer.whole and answer.chunks[-1].startswith("event: message_delta")


def test_an_event_of_messages_keeps_its_name_when_it_is_no_json(families: RunningServer) -> None:
    answer = ask(families, MESSAGES, True, "malformed-chunk; chunk=3")
    name, data = answer.chunks[2].split("\n")
    assert name.startswith("event: content_block_") and data.startswith("data: }{")
    assert answer.chunks[-1].startswith(STOP)


def test_an_error_of_messages_has_their_form(families: RunningServer) -> None:
    answer = ask(families, MESSAGES, False, "error; status=429; retry_after=3; message=later")
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "RateLimitError", "message": "later"},
    }


@pytest.mark.parametrize("path", [MESSAGES, GENERATE])
def test_streams_break_off_and_end_early(families: RunningServer, path: str) -> None:
    broken = ask(families, path, True, "disconnect; after=2")
    assert not broken.whole and len(broken.chunks) == 2
    early = ask(families, path, True, "truncate; after=2")
    assert early.whole and len(early.chunks) == 2


@pytest.mark.parametrize("path", [MESSAGES, GENERATE, BATCH])
def test_whole_answers_are_cut_or_empty(families: RunningServer, path: str) -> None:
    assert ask(families, path, False, "empty").body == b""
    cut = ask(families, path, False, "truncated-json")
    assert cut.whole and cut.body.startswith(b"{") and not cut.body.endswith(b"}")
    assert ask(families, path, False, "error; status=418").status == 418


def test_what_counts_tokens_or_renders_does_not_go_wrong(families: RunningServer) -> None:
    asked = {"model": "understudy-tiny", "messages": HI}
    for path in ("/v1/messages/count_tokens", "/v1/chat/completions/render"):
        with Asker(families.port) as asker:
            answer = asker.send(path, asked, X_Fault="error", X_Return_Error="503").answer()
            assert answer and answer.status == 200

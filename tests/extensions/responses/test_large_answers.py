"""Large responses are written in parts that say the same, with turns for others between them."""

from collections.abc import Callable
from itertools import count

import pytest

from app.core.api.writer import ResponseWriter
from app.core.protocol.common import encode
from app.extensions.responses.protocol import ResponseObject, ResponsesRequest
from app.extensions.responses.response import new_response
from app.extensions.responses.writer import ResponsesOptions, ResponsesWriter
from tests.callbacks import ignore
from tests.core.api.segments import body_of
from tests.core.api.test_large_answers import META, PROMPT, TOKENS, check_slices, check_turns, reply


def response(choices: int, ended: Callable[[ResponseObject], None] = ignore) -> ResponseWriter:
    first = new_response(ResponsesRequest(input="hi"), META, 9)
    options = ResponsesOptions(response=first, prompt_ids=PROMPT, top_logprobs=3)
    return ResponsesWriter(options, map(str, count()).__next__, ended)


def test_large_response_is_the_same_whether_written_in_parts_or_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_slices(response, 1, monkeypatch)


def test_other_requests_run_while_a_large_response_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_turns(response(1), monkeypatch, choices=1)


def test_stored_large_response_equals_the_sent_response() -> None:
    stored: list[ResponseObject] = []
    written = body_of(response(1, stored.append), reply(1, 3 * TOKENS))
    assert [encode(state) for state in stored] == [written]

"""Which tools a server calls after the result of a call."""

from typing import Any

import pytest

from app.core.api.chat.tools import tool_calls_of
from app.core.settings import load
from app.extensions.forms.schema import Schemas
from tests.extensions.responses.test_protocol import CALL, HELLO, RESULT, WEATHER, chat

ANSWER = {"role": "assistant", "content": "Rain."}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "weather"}])
def test_only_a_real_model_may_repeat_a_tool_call_after_the_result(choice: Any) -> None:
    settings = load([], {}).tools
    schemas = Schemas()
    for messages in ([HELLO, CALL, RESULT], [HELLO, CALL, RESULT, ANSWER]):
        request = chat(tools=[WEATHER], tool_choice=choice, input=messages)
        answered = tool_calls_of(request, settings, schemas)
        assert answered is not None
        assert (answered.min_calls, answered.max_calls, answered.question) == (0, 0, "")
        assert not answered.draws_call
        called = tool_calls_of(request, settings, schemas, computes=True)
        assert called is not None
        assert (called.min_calls, called.max_calls) == (0, 1)
    request = chat(tools=[WEATHER], tool_choice=choice, input=[HELLO, CALL, RESULT, ANSWER, HELLO])
    asked_again = tool_calls_of(request, settings, schemas)
    assert asked_again is not None
    assert asked_again.max_calls == 1 and asked_again.question

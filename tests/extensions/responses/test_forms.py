"""Which tools a server calls after the result of a call."""

from typing import Any

import pytest

from app.core.api.chat.tools import tool_calls_of
from app.core.settings import load
from app.extensions.forms.schema import Schemas
from tests.extensions.responses.test_protocol import CALL, HELLO, RESULT, WEATHER, chat


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "weather"}])
def test_a_simulation_answers_a_result_with_words_and_a_model_may_call_again(choice: Any) -> None:
    settings = load([], {}).tools
    schemas = Schemas()
    conversation = [HELLO, CALL, RESULT, {"role": "assistant", "content": "Rain."}, HELLO]
    for messages in (conversation[:3], conversation):
        request = chat(tools=[WEATHER], tool_choice=choice, input=messages)
        assert tool_calls_of(request, settings, schemas) is None
        called = tool_calls_of(request, settings, schemas, computes=True)
        assert called is not None
        assert (called.min_calls, called.max_calls) == (0, 1)

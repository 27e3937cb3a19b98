"""Which readers apply to the text of a request."""

import pytest

from app.core.engine.choice_request import TextForm, Thoughts
from app.core.engine.outputs import Part, Piece
from app.core.engine.request import ToolCalls, ToolFunction
from app.extensions.llm.text_readers import readers
from app.extensions.tool_calls.parsing import merged
from tests.core.engine.harness import engine_request

NAMED = ToolCalls(tools=(ToolFunction("f"),), min_calls=1, named=True)
BEGUN, POSSIBLE = Thoughts(end_id=2), Thoughts(end_id=2, begin_id=1)
THOUGHT: Piece = (Part("reasoning"), "Hm")
CALL: Piece = (Part("call", 0, "f"), "{}")


@pytest.mark.parametrize(
    ("thoughts", "text", "pieces"),
    [
        (BEGUN, "Hm</think>{}", [THOUGHT, CALL]),
        (POSSIBLE, "<think>Hm</think>{}", [THOUGHT, CALL]),
        (POSSIBLE, "{}", [CALL]),
        (None, "{}", [CALL]),
    ],
)
def test_required_tool_call_is_separated_from_the_reasoning(
    thoughts: Thoughts | None, text: str, pieces: list[Piece]
) -> None:
    form = TextForm(json_schema="{}", thoughts=thoughts)
    reader = readers(None)(engine_request(tool_calls=NAMED, form=form, reasoning=True))
    assert reader is not None
    assert merged([*reader.feed(text), *reader.finish()]) == pieces

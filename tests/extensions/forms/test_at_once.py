"""Requests with tools take a shorter way through the engine, which nobody can tell by anything."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.request import ToolCalls, ToolFunction
from app.extensions.forms.constraints import FormConstraints
from tests.core.engine.test_at_once import FIELDS, outcome

CALLS = ToolCalls(tools=(ToolFunction("look"),), min_calls=1)
REQUEST = st.fixed_dictionaries({**FIELDS, "tool_calls": st.sampled_from([None, CALLS])})


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=4),
    mode=st.sampled_from(["random", "echo"]),
    fails_at=st.none() | st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_immediate_and_paced_tool_calls_have_the_same_outputs(
    requests: list[dict[str, Any]], mode: str, fails_at: int | None
) -> None:
    schemas = FormConstraints()
    shorter = outcome(requests, mode, fails_at, longer_way=False, schemas=schemas)
    assert shorter == outcome(requests, mode, fails_at, longer_way=True, schemas=schemas)

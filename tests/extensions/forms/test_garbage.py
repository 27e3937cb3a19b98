"""Requests leave no cyclic garbage behind."""

import gc
from random import Random

# A server imports this module in a thread; its classes make garbage.
from app.extensions.forms.schema import Schemas, draw  # noqa: F401
from tests.core.engine.test_garbage import CHAT, MESSAGES, check_garbage

FUNCTION = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"a": {"type": "array"}}},
}


def test_request_with_tools_leaves_no_cyclic_garbage() -> None:
    tools = [{"function": FUNCTION}]
    body = {"messages": MESSAGES, "tools": tools, "tool_choice": "required"}
    check_garbage(CHAT, body, "200")


def test_compiled_regular_expressions_leave_little_garbage() -> None:
    """Each leaves some 2,000 objects in cycles, and a worker collects millions at once."""
    schemas = Schemas()
    rng = Random(1)
    schemas.matching_text("a", rng)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for number in range(40):
            schemas.matching_text("(a|a|aa)*" * 100 + f"b{number}", rng)
        assert len(gc.get_objects()) - before < 20_000
    finally:
        gc.enable()

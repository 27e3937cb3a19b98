"""Rendered requests whose answer must have a form."""

import json
from typing import Any

import pytest

from tests.extensions.scale_out.test_rendered import MESSAGES, rendered

TOOL = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ("required", {"type": "tags_with_separator", "stop_after_first": False}),
        ({"type": "function", "function": {"name": "ping"}}, {"stop_after_first": True}),
        ("auto", None),
    ],
)
def test_required_tools_are_rendered_as_a_structural_tag(
    choice: Any, form: dict[str, Any] | None
) -> None:
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
    sampling = rendered("/v1/chat/completions/render", body)["sampling_params"]
    assert sampling["skip_special_tokens"] is False
    if form is None:
        assert "structured_outputs" not in sampling
        return
    tag = json.loads(sampling["structured_outputs"]["structural_tag"])["format"]
    assert form.items() <= tag.items() and '"ping"' in tag["tags"][0]["begin"]
    sent = {"token_ids": [5], "sampling_params": sampling, "output_mode": "text"}
    assert rendered("/inference/v1/generate", sent)["choices"][0]["text"].startswith("<tool_call>")

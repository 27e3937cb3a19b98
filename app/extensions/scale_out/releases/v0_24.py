"""Changes of vLLM 0.24 to the routes of scale-out."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Change, Event

GENERATE = "/inference/v1/generate"
RENDERED = ("/v1/chat/completions/render",)


def constrain_by_schema(answer: Any, request: JsonObject) -> None:
    """Replaces the tag of calls by a JSON schema."""
    if isinstance(answer, list):  # the texts of releases before 0.18 have no parameters
        return
    constraints = answer["sampling_params"].get("structured_outputs")
    choice = request.get("tool_choice")
    if not constraints or not constraints.get("structural_tag"):
        return
    functions: dict[str, JsonObject] = {}
    tools: Any = request.get("tools") or ()
    for tool in tools:
        function = tool["function"]
        functions[function["name"]] = function.get("parameters") or {}
    if choice == "required":
        constraints["json"] = {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "anyOf": [_call(*item) for item in functions.items()]},
        }
    elif isinstance(choice, dict):
        constraints["json"] = functions[choice["function"]["name"]]
    else:
        return
    constraints["structural_tag"] = None


def _call(name: str, parameters: JsonObject) -> JsonObject:
    properties = {"name": {"type": "string", "enum": [name]}, "parameters": parameters}
    return {"properties": properties, "required": [*properties]}


def without_experts(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that leaves out the experts of the tokens."""

    def older(event: Event) -> Iterator[Event]:
        choices: Any = event[1].get("choices") or ()
        for choice in choices:
            choice.pop("routed_experts", None)
        yield event

    return older


CHANGES = (
    Change(
        area="Scale-out",
        before="The chunks of `/inference/v1/generate` have no `routed_experts`.",
        after="The choices of chunks have `routed_experts`.",
        forms=(Answer(paths=(GENERATE,), events=without_experts),),
    ),
    Change(
        area="Scale-out",
        before="A rendered chat whose tool is chosen has the schema of the call in "
        "`structured_outputs.json`.",
        after="The chat has the form of the call in `structured_outputs.structural_tag`.",
        forms=(Answer(paths=RENDERED, whole=constrain_by_schema),),
    ),
)

"""Mocks of LiteLLM: the models of a proxy's config.yaml whose `litellm_params` have a mock."""

from typing import Any

from app.extensions.recording.literals import literals
from config.untrusted import INVALID
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    is_number,
    items,
    mapping,
    milliseconds,
)
from workbench.imports.replies import chat_action, function_of, tool_call

MOCK_KEYS = ("mock_response", "mock_tool_calls", "mock_timeout", "mock_delay")
PARAMETER_KEYS = (*MOCK_KEYS, "model", "api_key", "api_base", "timeout")
ERRORS: dict[str, Json] = {
    "litellm.RateLimitError": {
        "action": "error",
        "status": 429,
        "message": "this is a mock rate limit error",
    },
    "litellm.ContextWindowExceededError": {
        "action": "error",
        "status": 400,
        "message": "this is a mock context window exceeded error",
    },
    "litellm.InternalServerError": {
        "action": "error",
        "status": 500,
        "message": "this is a mock internal server error",
    },
}
"""Texts that LiteLLM raises as errors instead of returning them."""
TIMEOUT: Json = {
    "action": "error",
    "status": 408,
    "message": "litellm.Timeout: This is a mock timeout error",
}
STREAMING_ERROR = "Exception: mock_streaming_error"
CONTENT_FILTER = "Exception: content_filter_policy"
DEFAULT_RESPONSE = "This is a mock request"
DEFAULT_TIMEOUT_S = 600
ANY_MODEL = "*"


def is_litellm(document: object) -> bool:
    """Returns whether a document has the form of a proxy's configuration."""
    return isinstance(document, dict) and isinstance(document.get("model_list"), list)


def import_litellm(document: object, script: ImportedScript) -> None:
    """Adds a rule for each model with a mock.

    Raises:
        ImportFormatError: the document does not have the form of a proxy's configuration.
    """
    file = mapping(document, "the file")
    models = items(file.get("model_list"), "model_list")
    script.leave_out_unknown("the file", file, ("model_list",))
    names: set[str] = set()
    for number, entry in enumerate(models, 1):
        place = f"model {number}"
        try:
            _add_model(script, place, mapping(entry, place), names)
        except ImportFormatError as error:
            script.leave_out(place, f"left out: {error}")
        except INVALID:
            script.leave_out(place, "left out: its mock is not an answer of a chat")
    script.rules.sort(key=_is_for_every_model)  # the first rule that matches answers


def _add_model(script: ImportedScript, place: str, model: Json, names: set[str]) -> None:
    """Adds the rule of a model that is not in `names`, and adds its name there."""
    name = model.get("model_name")
    if not isinstance(name, str):
        raise ImportFormatError("model_name is not a string")
    place = f"{place} ({name})"
    parameters = mapping(model.get("litellm_params") or {}, "litellm_params")
    if not any(key in parameters for key in MOCK_KEYS):
        script.leave_out(place, "left out: no mock")
        return
    if name in names:
        script.leave_out(place, "left out: the first deployment of a model answers all requests")
        return
    script.leave_out_unknown(place, parameters, PARAMETER_KEYS)
    script.add_rule(place, _rule(script, place, name, parameters))
    names.add(name)


def _is_for_every_model(rule: Json) -> bool:
    return not rule["when"]


def _rule(script: ImportedScript, place: str, name: str, parameters: Json) -> Json:
    action = _action_of(script, place, parameters)
    if is_number(parameters.get("mock_delay")):
        action["delays"] = {"first_token": milliseconds(parameters["mock_delay"])}
    rule: Json = {"name": place[:64], "when": {}, "then": action}
    if "*" in name and name != ANY_MODEL:
        script.leave_out(place, "the pattern of the name left out: every model matches")
    if "*" not in name:
        rule["when"]["model"] = name
    return rule


def _action_of(script: ImportedScript, place: str, parameters: Json) -> Json:
    if parameters.get("mock_timeout") is True:
        seconds: Any = parameters.get("timeout")
        if not is_number(seconds):
            seconds = DEFAULT_TIMEOUT_S
        script.leave_out(place, f"the {seconds:g} s before the error of mock_timeout left out")
        return {"fault": TIMEOUT}
    response = parameters.get("mock_response", DEFAULT_RESPONSE)
    calls = items(parameters.get("mock_tool_calls") or [], "mock_tool_calls")
    if isinstance(response, dict):
        return chat_action(script, place, response)
    response = str(response)
    if response in ERRORS:
        return {"fault": ERRORS[response]}
    if response.startswith(STREAMING_ERROR):
        return {"text": DEFAULT_RESPONSE, "fault": {"action": "disconnect", "after": 2}}
    if response.startswith(CONTENT_FILTER):
        return {"fault": {"action": "error", "status": 400, "message": response}}
    action: Json = {}
    if "mock_response" in parameters or not calls:
        action["text"] = literals(response)
    if calls:
        action["tool_calls"] = [tool_call(function_of(call)) for call in calls]
    return action

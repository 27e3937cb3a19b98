"""Changes of vLLM 0.23 to chats and completions."""

import re
from typing import Any

from app.core.base.nested_json import decode_nested
from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.paths import GENERATING, VALIDATED
from config.untrusted import UntrustedDataError

FAMILY_RULES = "app.core.versions.families.FamilyRules"
ORIGIN_RULES = "app.core.versions.origins.OriginRules"
PARSER_RULES = "app.core.versions.parsed_streams.ParserRules"
TEMPLATE_RULES = "app.core.api.chat.rules.ChatRules"
NAMED = (
    "response_format",
    "stream_options",
    "prompt_logprobs",
    "top_logprobs",
    "logprobs",
    "prompt",
)
"""Fields that errors of rules named before."""
PATHS = tuple(path for path in VALIDATED if path != "/v1/responses")
"""Errors of Responses named all fields before."""
BAD_TAG = re.compile(
    r"(?:1 validation error:\n  \{'type': 'value_error', 'loc': \('body',\), 'msg': "
    r"'Value error, )?Invalid (response_format|structured_outputs) structural_tag specification\."
)
"""The whole error of a structural tag; other errors may quote the words."""
EMPTY_PROMPT = "Either prompt or prompt_embeds must be "


def fail_without_param(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error of a rule that names no field."""
    is_rule = error.type == "Bad Request" and "'value_error'" in error.message
    if not is_rule or not error.param or error.param.startswith("body"):
        return None
    if error.param in NAMED and EMPTY_PROMPT not in error.message:
        return None
    message = error.message.replace(f" (parameter={error.param})", "")
    return ApiError(error.status, error.type, message)


def fail_at_tag(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a structural tag, at which the engine fails.

    Only the begins and triggers of the older form are checked before.
    """
    match = BAD_TAG.match(error.message)
    if match is None:
        return None
    tag = request[match[1]]
    if match[1] == "structured_outputs":
        try:
            tag = decode_nested(tag["structural_tag"])
        except UntrustedDataError:
            return None
    elif "format" not in tag and not isinstance(tag.get("structures"), list):
        return None
    if not isinstance(tag, dict):
        return None
    words = _unknown_trigger(tag)
    if words is None:
        return internal("")
    return bad_request(words)


def _unknown_trigger(tag: dict[str, Any]) -> str | None:
    """Returns the words of an error about begins that no trigger announces, if there is one."""
    structures = tag.get("structures")
    triggers = tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        return None
    if not structures:
        return "No structural tags found in the grammar spec."
    texts = tuple(trigger for trigger in triggers if isinstance(trigger, str))
    for structure in structures:
        begin = structure.get("begin") if isinstance(structure, dict) else None
        if isinstance(begin, str) and not begin.startswith(texts):
            return f"Trigger {begin} not found in triggers {triggers}"
    return None


CHANGES = (
    Change(
        area="Chat and completions",
        before="With a tool parser such as `hermes`, each text of a streamed chat has "
        "`tool_calls: []`, also without tools.",
        after="The texts of chats without tools have no `tool_calls`.",
        forms=(Rules(PARSER_RULES, {"parses_all": True}),),
        options=("tool-call-parser",),
    ),
    Change(
        area="Chat and completions",
        before="An invalid structural tag fails with 500, without words, and one whose `begin` "
        "has no trigger with 400.",
        after="Both fail with 400, as all rules do.",
        forms=(Answer(paths=GENERATING, failure=fail_at_tag),),
    ),
    Change(
        area="Errors",
        before="An error of the type `BadRequestError` has no headers for browsers of other "
        "origins, even if it names a field.",
        after="An error that names a field has these headers.",
        forms=(Rules(ORIGIN_RULES, {"opens_named_rules": False}),),
        options=("allowed-origins",),
    ),
    Change(
        area="Errors",
        before="Errors of rules about tools, constraints and prompts have a null `param`.",
        after="`param` is the field.",
        forms=(Answer(paths=PATHS, failure=fail_without_param),),
    ),
    Change(
        area="Chat and completions",
        before="A chat template gets the role `developer` as it is.",
        after="A template that does not name the role gets `system` instead.",
        forms=(Rules(TEMPLATE_RULES, {"keeps_developers": True}),),
        routes=("/v1/chat/completions",),
    ),
    Change(
        area="Metrics",
        before="The sum of `vllm:iteration_tokens_total` has cached tokens of prompts.",
        after="The sum has computed tokens alone.",
        forms=(Rules(FAMILY_RULES, {"sums_cached_tokens": True}),),
        options=("model",),
    ),
)

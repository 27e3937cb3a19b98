"""Rules that hold for several kinds of requests, and come before the schema.

Values have any type: fields of a struct, or raw JSON. A rule ignores values of an unknown type,
which the schema rejects. All rules raise `ApiError`.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from app.core.base.clock.pause import paced
from app.core.base.nested_json import decode_nested
from app.core.server.http.errors import bad_request

MAX_CACHE_SALT_CHARS = 128
FORBIDDEN_IN_CACHE_SALT = frozenset("@/\\\0")


def get_field(value: object, name: str) -> object:
    """Returns field `name` of a struct or a raw object, or None if there is no such field."""
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def check_shared_fields(request: Any) -> None:
    """Checks the fields that chats and completions share, after their other rules."""
    response_format = request.response_format
    kind = response_format and get_field(response_format, "type")
    if kind == "json_schema" and get_field(response_format, "json_schema") is None:
        raise bad_request(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )
    if kind == "structural_tag" and not _is_structural_tag(response_format):
        raise bad_request(
            "Invalid response_format structural_tag specification.", "response_format"
        )
    check_cache_salt(request.cache_salt)
    check_thinking_budget(request.thinking_token_budget)


def _is_structural_tag(tag: object) -> bool:
    if isinstance(tag, dict) and "format" in tag or get_field(tag, "format") is not None:
        return True
    structures = get_field(tag, "structures")
    texts = get_field(tag, "triggers")
    if not isinstance(structures, list) or not isinstance(texts, list):
        return False
    for structure in structures:
        texts = [*texts, get_field(structure, "begin"), get_field(structure, "end")]
    return all(isinstance(text, str) for text in texts)


def check_cache_salt(salt: object) -> None:
    r"""Requires 1 to 128 characters, without ``@``, ``/``, ``\`` and NUL."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_request(
            "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
        )
    if len(salt) > MAX_CACHE_SALT_CHARS or not FORBIDDEN_IN_CACHE_SALT.isdisjoint(salt):
        raise bad_request(
            f"Parameter 'cache_salt' must be at most {MAX_CACHE_SALT_CHARS} characters "
            r"and must not contain '@', '/', '\\', or NUL.",
            "cache_salt",
        )


def check_thinking_budget(budget: object) -> None:
    """Requires an integer of at least 0, or -1 for no limit, without conversion."""
    if budget is None:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < -1:
        raise bad_request(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            budget,
        )


def check_structured_outputs(
    constraints: object, param: str | None, tool_choice: object = "none"
) -> None:
    """Checks the field `structured_outputs`.

    At most one of json, regex and choice is set, and none beside a named tool. A structural tag is
    a JSON object.
    """
    if constraints is None:
        return
    count = sum(get_field(constraints, name) is not None for name in ("json", "regex", "choice"))
    if count > 1:
        raise bad_request(
            "You can only use one kind of constraints for structured outputs "
            "('json', 'regex' or 'choice').",
            param,
        )
    if count and tool_choice not in ("none", "auto", "required"):
        raise bad_request(
            "You can only either use constraints for structured outputs or tools, not both."
        )
    tag = get_field(constraints, "structural_tag")
    try:
        is_valid = tag is None or isinstance(tag, str) and isinstance(decode_nested(tag), dict)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise bad_request(
            "Invalid structured_outputs structural_tag specification.", "structured_outputs"
        )


def check_stream_options(options: object, stream: object) -> None:
    """Allows `stream_options` only for a stream."""
    if options and not stream:
        raise bad_request(
            "Stream options can only be defined when `stream=True`.", "stream_options"
        )


def check_continuation(continue_final_message: object, add_generation_prompt: object) -> None:
    """Allows either to continue the last message or to prompt for a new one."""
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )


def check_logprobs(request: Any, name: str) -> None:
    """Requires -1 (all) or at least 0 for `prompt_logprobs` and for the reply's field `name`.

    A stream has no log probabilities of the prompt.
    """
    prompt_logprobs = request.prompt_logprobs
    counts = (("prompt_logprobs", prompt_logprobs), (name, getattr(request, name)))
    for field, value in counts:
        # Any number passes here: the schema then requires an integer.
        if value is not None and not isinstance(value, int | float):
            raise bad_request(f"`{field}` must be an integer.", field, value)
    asks_for_prompt = prompt_logprobs is not None and (prompt_logprobs > 0 or prompt_logprobs == -1)
    if asks_for_prompt and request.stream:
        raise bad_request(
            "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
        )
    for field, value in counts:
        if value is not None and value < 0 and value != -1:
            raise bad_request(f"`{field}` must be a positive value or -1.", field, value)


def nested_values(value: object) -> Iterator[object]:
    """Yields a value of JSON, and all values and keys in it. Pauses between many."""
    found = [value]
    for item in paced(found):  # which grows
        yield item
        if isinstance(item, dict):
            found.extend(item)
            found.extend(item.values())
        elif isinstance(item, list):
            found.extend(item)


def check_unicode(value: object) -> None:
    """Rejects lone surrogates, which JSON escapes can express but UTF-8 cannot."""
    for item in nested_values(value):
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise bad_request("the request contains text that is not valid Unicode") from None


def check_tools(tools: object, choice: object) -> None:
    """Checks that a chat's `tool_choice` fits its tools."""
    if tools == []:
        raise bad_request(
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    if choice is None or choice == "none":
        return
    if tools is None:
        raise bad_request("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice in ("auto", "required"):
        return
    if isinstance(choice, str | int | float | list):
        raise bad_request(
            f"Invalid value for `tool_choice`: {str(choice)[:200]}! "
            'Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    if get_field(choice, "type") == "allowed_tools":
        _check_allowed_tools(tools, choice)
    else:
        _check_named_tool(tools, choice)


def _check_allowed_tools(tools: object, choice: object) -> None:
    allowed_tools = get_field(get_field(choice, "allowed_tools"), "tools")
    if not isinstance(allowed_tools, list) or not allowed_tools:
        raise bad_request("tool_choice.allowed_tools requires tools", "tool_choice.allowed_tools")
    if not _function_names(allowed_tools) <= _function_names(tools):
        raise bad_request("tool_choice allows a tool that is not in tools", "tool_choice")


def _check_named_tool(tools: object, choice: object) -> None:
    function = get_field(choice, "function")
    if function is None or isinstance(function, str | int | float | list):
        raise bad_request("tool_choice requires a function object", "tool_choice.function")
    name = get_field(function, "name")
    if not isinstance(name, str) or not name:
        raise bad_request("tool_choice.function requires a name", "tool_choice.function.name")
    if not isinstance(tools, list) or not all(map(_has_function, tools)):
        raise bad_request("tools must be a list of objects")
    if name not in _function_names(tools):
        raise bad_request(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "tool_choice",
        )


def _function_names(tools: object) -> set[str | None]:
    """Returns the names in a list of tools; None stands for a name that is not a string."""
    if not isinstance(tools, list):
        return set()
    names = [get_field(get_field(tool, "function"), "name") for tool in tools]
    return {name if isinstance(name, str) else None for name in names}


def _has_function(tool: object) -> bool:
    return isinstance(tool, dict | Struct) and not isinstance(
        get_field(tool, "function"), str | int | float
    )


def check_chat_logprobs(request: Any) -> None:
    """Checks the fields of a chat about log probabilities."""
    if request.logprob_token_ids and request.use_beam_search:
        raise bad_request(
            "`logprob_token_ids` is not supported with beam search.", "logprob_token_ids"
        )
    if request.logprob_token_ids and not request.logprobs:
        raise bad_request(
            "when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids"
        )
    check_logprobs(request, "top_logprobs")
    if request.top_logprobs and not request.logprobs:
        raise bad_request(
            "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )

"""Parse-time rules that more than one kind of request obeys (vllm-api.md section 4).

A rule looks at attributes of a request, which is a struct or a `RawRequest`. Rules come before the schema, so
on a raw request a value can be of any type; a rule that cannot make sense of one leaves it to the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from app.http.errors import bad_request

MAX_CACHE_SALT_CHARS = 128
_FORBIDDEN_IN_CACHE_SALT = frozenset("@/\\\0")


def part(value: Any, name: str) -> Any:
    """The field `name` of a nested object, be it a struct or a raw one; None when there is none."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def check_cache_salt(salt: Any) -> None:
    """A salt is 1 to 128 characters, none of ``@ / \\`` and NUL."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_request("cache_salt must be a string that is not empty", "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARS or not _FORBIDDEN_IN_CACHE_SALT.isdisjoint(salt):
        raise bad_request(
            f"cache_salt takes at most {MAX_CACHE_SALT_CHARS} characters, without '@', '/', '\\' and NUL",
            "cache_salt",
        )


def check_response_format(response_format: Any) -> None:
    """``json_schema`` needs its schema; a structural tag has a format, or structures with their triggers."""
    kind = part(response_format, "type")
    if kind == "json_schema" and part(response_format, "json_schema") is None:
        raise bad_request("response_format of type json_schema needs json_schema", "response_format")
    if kind == "structural_tag" and not _is_structural_tag(response_format):
        raise bad_request("response_format is no valid structural tag", "response_format")


def _is_structural_tag(tag: Any) -> bool:
    if isinstance(tag, dict) and "format" in tag or part(tag, "format") is not None:
        return True
    structures, triggers = part(tag, "structures"), part(tag, "triggers")
    return (
        isinstance(structures, list)
        and isinstance(triggers, list)
        and all(isinstance(trigger, str) for trigger in triggers)
        and all(isinstance(part(structure, key), str) for structure in structures for key in ("begin", "end"))
    )


def count_constraints(structured_outputs: Any, param: str | None) -> int:
    """How many of json, regex and choice are given; more than one is an error that names `param`."""
    given = sum(part(structured_outputs, name) is not None for name in ("json", "regex", "choice"))
    if given > 1:
        raise bad_request("structured_outputs takes only one of json, regex and choice", param)
    return given


def check_structural_tag(structured_outputs: Any) -> None:
    """A structural tag, where given, is a text that holds a JSON object."""
    tag = part(structured_outputs, "structural_tag")
    if tag is None:
        return
    try:
        is_object = isinstance(tag, str) and isinstance(json.loads(tag), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise bad_request("structured_outputs.structural_tag must be a JSON object", "structured_outputs")


def check_stream_options(request: Any) -> None:
    """Stream options need a stream."""
    if request.stream_options and not request.stream:
        raise bad_request("stream_options only go with stream=true", "stream_options")


def check_continuation(request: Any) -> None:
    """A final message is either continued or answered."""
    if request.continue_final_message and request.add_generation_prompt:
        raise bad_request("continue_final_message and add_generation_prompt exclude each other")


def check_thinking_budget(budget: Any) -> None:
    """An integer of at least 0, or -1 for no limit; nothing that merely looks like one."""
    if budget is None:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < -1:
        raise bad_request(
            "thinking_token_budget must be an integer, 0 or more, or -1", "thinking_token_budget"
        )


def check_whole_numbers(request: Any, *names: str) -> None:
    """The named fields are numbers where they are given; the schema sees to it that they are whole."""
    for name in names:
        value = getattr(request, name)
        if value is not None and not isinstance(value, int | float):
            raise bad_request(f"{name} must be an integer", name)


def check_prompt_logprobs(request: Any) -> None:
    """-1 (all) or at least 0, and only 0 in a stream."""
    wanted = request.prompt_logprobs
    if wanted is None:
        return
    if request.stream and (wanted > 0 or wanted == -1):
        raise bad_request("prompt_logprobs do not go with stream=true", "prompt_logprobs")
    if wanted < 0 and wanted != -1:
        raise bad_request("prompt_logprobs must be 0 or more, or -1", "prompt_logprobs")


def check_unicode(value: Any) -> None:
    """No lone halves of surrogate pairs, which JSON escapes can spell but no tokenizer or socket takes."""
    for text in _strings(value):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise bad_request("the request contains text that is not valid Unicode") from None


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)

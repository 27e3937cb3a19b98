"""Parse-time rules for several kinds of requests (vllm-api.md section 4).

Rules run before the schema: values have any type, a struct or raw JSON. A rule ignores values of an unknown
type, which the schema refuses.
"""

from __future__ import annotations

import json

import msgspec

from app.serving.http.errors import bad_request

MAX_CACHE_SALT_CHARS = 128
_FORBIDDEN_IN_CACHE_SALT = frozenset("@/\\\0")


def part(value: object, name: str) -> object:
    """Returns field `name` of a struct or a raw object; None without one."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def check_cache_salt(salt: object) -> None:
    """Raises `ApiError` unless a salt has 1 to 128 characters, without ``@ / \\`` and NUL."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_request("cache_salt must be a string that is not empty", "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARS or not _FORBIDDEN_IN_CACHE_SALT.isdisjoint(salt):
        raise bad_request(
            f"cache_salt takes at most {MAX_CACHE_SALT_CHARS} characters, without '@', '/', '\\' and NUL",
            "cache_salt",
        )


def check_response_format(response_format: object) -> None:
    """Raises `ApiError` for ``json_schema`` without a schema, and for an invalid structural tag."""
    if response_format is None:
        return
    kind = part(response_format, "type")
    if kind == "json_schema" and part(response_format, "json_schema") is None:
        raise bad_request("response_format of type json_schema needs json_schema", "response_format")
    if kind == "structural_tag" and not _is_structural_tag(response_format):
        raise bad_request("response_format is no valid structural tag", "response_format")


def _is_structural_tag(tag: object) -> bool:
    if isinstance(tag, dict) and "format" in tag or part(tag, "format") is not None:
        return True
    structures, triggers = part(tag, "structures"), part(tag, "triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        return False
    texts = [*triggers, *(part(each, name) for each in structures for name in ("begin", "end"))]
    return all(isinstance(text, str) for text in texts)


def count_constraints(structured_outputs: object, param: str | None) -> int:
    """Counts json, regex and choice. Raises `ApiError`, with `param`, for more than one."""
    given = sum(part(structured_outputs, name) is not None for name in ("json", "regex", "choice"))
    if given > 1:
        raise bad_request("structured_outputs takes only one of json, regex and choice", param)
    return given


def check_structural_tag(structured_outputs: object) -> None:
    tag = part(structured_outputs, "structural_tag")
    if tag is not None and not (isinstance(tag, str) and _is_object(tag)):
        raise bad_request("structured_outputs.structural_tag must be a JSON object", "structured_outputs")


def _is_object(text: str) -> bool:
    """True if `text` is a JSON object; Python's parser is tried only when msgspec refuses `text`."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return True
    except (ValueError, RecursionError):
        pass
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def check_stream_options(options: object, stream: object) -> None:
    if options and not stream:
        raise bad_request("stream_options only go with stream=true", "stream_options")


def check_continuation(continue_final_message: object, add_generation_prompt: object) -> None:
    if continue_final_message and add_generation_prompt:
        raise bad_request("continue_final_message and add_generation_prompt exclude each other")


def check_thinking_budget(budget: object) -> None:
    """Raises `ApiError` unless `budget` is an integer of at least 0, or -1 for no limit; no conversion."""
    if budget is None:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < -1:
        raise bad_request(
            "thinking_token_budget must be an integer, 0 or more, or -1", "thinking_token_budget"
        )


def check_number(name: str, value: object) -> None:
    """Raises `ApiError` for a value that is no number; the schema then requires an integer."""
    if value is not None and not isinstance(value, int | float):
        raise bad_request(f"{name} must be an integer", name)


def check_prompt_logprobs(wanted: float | None, stream: object) -> None:
    """Raises `ApiError` unless `wanted` is -1 (all) or at least 0, and in a stream 0."""
    if wanted is None:
        return
    if stream and (wanted > 0 or wanted == -1):
        raise bad_request("prompt_logprobs do not go with stream=true", "prompt_logprobs")
    if wanted < 0 and wanted != -1:
        raise bad_request("prompt_logprobs must be 0 or more, or -1", "prompt_logprobs")


def check_unicode(value: object) -> None:
    """Raises `ApiError` for lone surrogates, which JSON escapes can express but UTF-8 cannot."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise bad_request("the request contains text that is not valid Unicode") from None
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)

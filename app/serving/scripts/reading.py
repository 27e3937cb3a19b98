"""Parses a YAML file into a `Script`. Errors are one line with file, rule and key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import get_args

import msgspec
from msgspec.structs import fields

from app.serving.scripts.rules import PARTS, PASS, Family, Rule, Scope, Script, ScriptError, Then
from config.declaration import ConfigError
from config.yaml_file import parse_yaml

MOST_BYTES = 2 << 20
"""Largest script, in bytes."""
CONTENT = ("text", "json", "tool_calls", "reasoning")
NUMBERS = ("embedding", "score", "classes")
OURS = {"Expected": "expected", "Object": "the mapping is", "array": "list", "`": "", " | null": ""}
"""Phrases of msgspec's errors and their replacements in YAML terms."""
WORDS = {
    "api": get_args(Family),
    "which": ("last", "first", "any"),
    "per": get_args(Scope),
    "finish_reason": ("stop", "length", "abort", "content_filter"),
}
_PATH = re.compile(r" - at (?:key in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")
_STEP = re.compile(r"\[\.\.\.\]|\[(\d+)\]|\.([^.\[]+)")


def read_script(path: str) -> Script:
    """Reads the script in the file `path`. ScriptError for a missing or invalid file."""
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise ScriptError(f"script {path}: {size} bytes are more than the {MOST_BYTES} of a script")
        document = parse_yaml(path)
    except OSError as error:
        raise ScriptError(f"script {path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ScriptError(str(error).replace("YAML file", "script", 1)) from None
    if not isinstance(document, dict):
        raise ScriptError(f"script {path}: must be a mapping with rules, got {type(document).__name__}")
    return script_of(document, path)


def script_of(document: Mapping[str, object], path: str) -> Script:
    """Converts a parsed document into a script; `path` names the file in errors. Raises ScriptError like
    `read_script`.
    """
    try:
        script = msgspec.convert(document, Script)
        for number, rule in enumerate(script.rules, 1):
            if flaw := flaw_of(rule):
                raise ScriptError(f"{place(path, number, rule.name)}: {flaw}")
    except msgspec.ValidationError as error:
        raise ScriptError(_explained(str(error), document, path)) from None
    return script


def place(path: str, number: int, name: str = "") -> str:
    """Names a rule in errors and logs."""
    return f"script {path}: rule {number}" + (f" ({name})" if name else "")


def flaw_of(rule: Rule) -> str:
    """Returns an error that msgspec's types cannot express; empty for a valid rule."""
    then = rule.then
    if not isinstance(then, Then):
        return "" if then == PASS else f"then: must be {PASS!r} or a mapping, got {then[:40]!r}"
    if then == Then():
        return f"then: is empty; it needs {', '.join((*CONTENT, *NUMBERS))}, fault or {PASS}"
    said = [key for key in CONTENT if _is_given(then, key)]
    said += [key for key in NUMBERS if _is_given(then, key)]
    if then.passes and (said or then.finish_reason):
        return (
            f"then: {PASS} leaves what is said to the mode below, so {(said or ['the rest'])[0]} is in vain"
        )
    if _is_given(then, "text") and _is_given(then, "json"):
        return "then: text and json exclude each other"
    if len(said) > 1 and said[-1] in NUMBERS:
        return f"then: {said[0]} and {said[-1]} exclude each other: no request gets both"
    if then.fault is None and not then.passes and not said:
        return f"then: says nothing; give it a text, or {PASS}: true"
    return ""


def _is_given(then: Then, key: str) -> bool:
    value = getattr(then, key)
    return value is not None and value is not msgspec.UNSET and value != ()


def _explained(message: str, document: object, path: str) -> str:
    """Rewrites msgspec's message with the rule and key of the file."""
    found = _PATH.search(message)
    what = message[: found.start()] if found else message
    steps = list(_steps(found["path"])) if found else []
    holder = next((step for step in reversed(steps) if step in PARTS), "")
    if unknown := _UNKNOWN.search(what):
        what = _unknown(unknown["key"], holder)
    elif what.startswith("Invalid enum") and (words := WORDS.get(steps[-1] if steps else "")):
        what = f"must be one of {', '.join(words)}, {what[8:]}"
    else:
        for theirs, ours in OURS.items():
            what = what.replace(theirs, ours)
    if steps[:1] == ["rules"] and len(steps) > 1 and steps[1].isdigit():
        number = int(steps[1])
        place_of_rule = place(path, number + 1, _name_of(document, number))
        rest = ".".join(steps[2:])
        return f"{place_of_rule}: {rest + ': ' if rest else ''}{what}"
    where = ".".join(steps)
    return f"script {path}: {where + ': ' if where else ''}{what}"


def _steps(path: str) -> Iterator[str]:
    for step in _STEP.finditer(path):
        yield step[1] or step[2] or "?"


def _unknown(key: str, holder: str) -> str:
    known = [each.encode_name for each in fields(PARTS.get(holder, Rule))]
    near = get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"unknown key {key[:40]!r}; {hint}"


def _name_of(document: object, number: int) -> str:
    rules = document.get("rules") if isinstance(document, dict) else None
    rule = rules[number] if isinstance(rules, list) else None
    name = rule.get("name") if isinstance(rule, dict) else None
    return name[:64] if isinstance(name, str) else ""

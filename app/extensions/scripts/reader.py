"""Reads scripts from files and documents. Errors are one line with file, rule and key."""

import re
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import fields

from app.core.protocol.common import UsageOverrides
from app.extensions.scripts.rules import (
    CONTENT_KEYS,
    COUNT_TOKENS,
    NUMBER_KEYS,
    PASS,
    Delays,
    Family,
    Finish,
    MessageIs,
    Nth,
    Range,
    Rule,
    RuleCall,
    Scope,
    Script,
    ScriptError,
    Then,
    ToolResultIs,
    When,
    Which,
)
from config.declaration import ConfigError, closest, suggestion
from config.yaml_file import parse_yaml

MAX_SCRIPT_BYTES = 2 << 20
PARTS = (
    Script,
    Rule,
    When,
    MessageIs,
    ToolResultIs,
    Range,
    Nth,
    Then,
    RuleCall,
    UsageOverrides,
    Delays,
)
KEYS = {field.encode_name for part in PARTS for field in fields(part)}
"""All keys of the language."""
KEYS_OF = {
    name: {field.encode_name for field in fields(part)}  # type: ignore[arg-type]
    for name, part in {
        "": Script,
        "rule": Rule,
        "when": When,
        "message": MessageIs,
        "tool_result": ToolResultIs,
        "nth": Nth,
        "turn": Range,
        "then": Then,
        "tool_calls": RuleCall,
        "usage": UsageOverrides,
        "delays": Delays,
    }.items()
}
"""Valid keys by the key of their mapping; empty for the whole script."""
LINES = {
    **{key: f"when: {{message: {{{key}: TEXT}}}}" for key in ("contains", "exact", "regex")},
    **{key: f"when: {{message: {{{key}: ...}}}}" for key in ("role", "which", "ignore_case")},
    **{key: f"when: {{turn: {{{key}: NUMBER}}}}" for key in KEYS_OF["turn"]},
    **{key: f"when: {{{key}: ...}}" for key in KEYS_OF["when"]},
    **{key: f"then: {{{key}: ...}}" for key in KEYS_OF["then"]},
    **{key: f"{key}: ... beside when and then" for key in ("times", "name")},
    **{key: "then: {fault: {action: error, status: 503}}" for key in ("status", "error")},
    "retry_after": "then: {fault: {action: error, status: 429, retry_after: 1}}",
    "tool_call": "then: {tool_calls: [{name: TOOL, arguments: {}}]}",
    "arguments": "then: {tool_calls: [{name: TOOL, arguments: {}}]}",
    "content": "then: {text: TEXT}",
}
"""The line to write for a key at the wrong place. TEXT, TOOL and ... stand for values."""
SHORTEST = "rules: [{when: {message: {contains: TEXT}}, then: {text: TEXT}}]"
CHOICES = {"api": Family, "which": Which, "per": Scope, "finish_reason": Finish}
API_OF_KEY = {"blocks": "messages", "input_tokens": COUNT_TOKENS}
"""The only API whose answers have a key of `then`."""
UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")
PATH_STEP = re.compile(r"[^\].\[]+|\.\.\.")
"""A step of a path in an error: `rules` and 1 in `$.rules[1]`; three dots stand for any member."""


def read_script(path: str) -> Script:
    """Reads the script in the file `path`.

    Raises:
        ScriptError: The file is missing or invalid.
    """
    try:
        document = parse_yaml(path, MAX_SCRIPT_BYTES)
    except ConfigError as error:
        raise ScriptError(str(error).replace("YAML file", "script", 1)) from None
    if not isinstance(document, dict):
        raise ScriptError(
            f"script {path} must be a mapping that contains rules, got {type(document).__name__}: "
            f"write {SHORTEST}"
        )
    return convert_script(document, path)


def convert_script(document: Mapping[str, object], path: str, first: int = 1) -> Script:
    """Converts a parsed document to a script; `first` is the number of its first rule.

    Raises:
        ScriptError: The document is invalid.
    """
    try:
        script = msgspec.convert(document, Script, str_keys=True)
    except msgspec.ValidationError as error:
        raise ScriptError(_explain(str(error), document, path, first=first)) from None
    for number, rule in enumerate(script.rules, first):
        flaw = _flaw_of(rule.then) or _flaw_of_api(rule)
        if flaw:
            raise ScriptError(f"{rule_location(path, number, rule.name)}: then: {flaw}")
    return script


def rule_location(path: str, number: int, name: str = "") -> str:
    """Returns the words that name a rule in errors, logs and reports."""
    location = f"script {path}: rule {number}"
    if not name:
        return location
    return f"{location} ({name})"


def _flaw_of(outcome: str | Then) -> str:
    """Returns an error that msgspec's types cannot express; empty for a valid action."""
    if not isinstance(outcome, Then):
        if outcome == PASS:
            return ""
        return f"must be {PASS!r} or a mapping, got {outcome[:40]!r}"
    keys = [
        key
        for key in (*CONTENT_KEYS, *NUMBER_KEYS)
        if getattr(outcome, key) not in (None, UNSET, ())
    ]
    if outcome == Then():
        return f"is empty; it needs {', '.join((*CONTENT_KEYS, *NUMBER_KEYS))}, fault or {PASS}"
    if outcome.passes:
        return _flaw_of_pass(outcome, keys)
    if {"text", "json"} <= set(keys):
        return "text and json cannot be combined"
    if len(keys) > 1 and keys[-1] in ("blocks", *NUMBER_KEYS):
        return f"{keys[0]} and {keys[-1]} cannot be combined, because no request gets both"
    if not keys and not outcome.fault:
        return f"has no reply; add a text, or {PASS}: true"
    return ""


def _flaw_of_api(rule: Rule) -> str:
    """Returns an error for keys that only one API has, in a rule for other APIs."""
    for key, api in API_OF_KEY.items():
        if getattr(rule.then, key, None) is not None and rule.when.api not in (api, (api,)):
            return f"{key} needs when: {{api: {api}}}"
    return ""


def _flaw_of_pass(outcome: Then, keys: Sequence[str]) -> str:
    if not keys and outcome.finish_reason is None:
        return ""
    key = next(iter(keys), "finish_reason")
    return f"{PASS} leaves the reply to the reply mode, so {key} has no effect"


def _explain(message: str, document: Mapping[str, object], path: str, *, first: int) -> str:
    """Rewrites msgspec's message with the rule and key of the file."""
    problem, _, json_path = message.partition(" - at ")
    steps = PATH_STEP.findall(json_path.partition("$")[2].rstrip("`"))
    unknown = UNKNOWN_FIELD.search(problem)
    if unknown:
        problem = _unknown_key(unknown[1], steps)
    elif problem.startswith("Invalid enum") and steps and steps[-1] in CHOICES:
        words = get_args(CHOICES[steps[-1]])
        problem = f"must be one of {', '.join(words)}, {problem[8:]}"
    location = f"script {path}"
    if steps[:1] == ["rules"] and len(steps) > 1 and steps[1].isdigit():
        index = int(steps[1])
        location = rule_location(path, index + first, _rule_name(document, index))
        steps = steps[2:]
    return ": ".join(filter(None, (location, ".".join(steps), problem)))


def _unknown_key(key: str, steps: Sequence[str]) -> str:
    """Returns an error with the line to write, or with the keys that are valid at this place.

    `steps` lead to the mapping that has the key.
    """
    names = [step for step in steps if not step.isdigit() and step != "rules"]
    keys = KEYS_OF.get(names[-1] if names else "", KEYS)
    if steps[:1] == ["rules"] and not names:
        keys = KEYS_OF["rule"]
    problem = f"unknown key {key[:40]!r}"
    line = LINES.get(key)
    if line is not None and key not in keys:
        return f"{problem}; it belongs elsewhere: write {line}"
    close = suggestion(key, keys)
    if not close:  # a misspelled key of another place
        word = closest(key, [name for name in LINES if name not in keys])
        if word:
            close = f"; did you mean {word}? Write {LINES[word]}."
    return f"{problem}{close or '.'} The keys here are {', '.join(sorted(keys))}"


def _rule_name(document: Mapping[str, object], index: int) -> str:
    rules = document.get("rules")
    rule = rules[index] if isinstance(rules, list) else None
    if not isinstance(rule, dict) or not isinstance(rule.get("name"), str):
        return ""
    name: str = rule["name"]
    return name[:64]

"""Rules of mock-llm (npm: @dwmkerr/mock-llm): YAML with `rules`. The last match answers.

A rule has a `path`, a `match` in JMESPath and a `response` with a status and the JSON of an answer.
Only the expressions that most rules consist of are read: `@`, and comparisons of a message, the
model or a header, joined by `&&`.
"""

import json
import re

from config.untrusted import INVALID, decode_untrusted, python_json
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    items,
    mapping,
)
from workbench.imports.replies import chat_action, error_action

APIS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
RULE_KEYS = ("path", "method", "match", "sequence", "response")
VALUE = (
    r"(?:body\.)?(?:messages\[(?P<index>-1|0)\]\.content|(?P<model>model))"
    r"|headers\.(?P<header>[\w-]+)"
)
TEXT = r"'(?P<single>[^']*)'|`\"(?P<json>[^`\"]*)\"`"
CONTAINS = re.compile(rf"contains\((?:{VALUE}),\s*(?:{TEXT})\)")
EQUALS = re.compile(rf"(?:{VALUE})\s*==\s*(?:{TEXT})")
EXPRESSION = re.compile(r"\{\{\s*(.+?)\s*\}\}")
TEMPLATES = {
    "jmes request body.messages[-1].content": "{{ message }}",
    "jmes request body.model": "{{ model }}",
    "timestamp": "{{ unix * 1000 }}",
}
"""Expressions of replies, and the templates of scripts with the same value."""
MARK = "\ue000"
"""Stands for a template while a reply is read as JSON."""


def is_mock_llm(document: object) -> bool:
    """Returns whether a document has the form of mock-llm's configuration."""
    if not isinstance(document, dict) or not isinstance(document.get("rules"), list):
        return False
    return all(isinstance(rule, dict) and "path" in rule for rule in document["rules"])


def import_mock_llm(document: object, script: ImportedScript) -> None:
    """Adds a rule for each rule, in the opposite order.

    Raises:
        ImportFormatError: the document does not have the form of mock-llm's configuration.
    """
    file = mapping(document, "the file")
    script.leave_out_unknown("the file", file, ("rules",))
    sequences: dict[str, list[tuple[int, Json]]] = {}
    numbered = list(enumerate(items(file.get("rules"), "rules"), 1))
    for number, entry in reversed(numbered):
        place = f"rule {number}"
        try:
            rule = mapping(entry, place)
            imported = _rule(script, place, rule)
        except ImportFormatError as error:
            script.leave_out(place, f"left out: {error}")
            continue
        except INVALID:
            script.leave_out(place, "left out: response.content is not an answer of a chat")
            continue
        key = json.dumps(imported["when"], sort_keys=True)
        if isinstance(rule.get("sequence"), int):
            sequence = sequences.setdefault(key, [])
            if not sequence:
                script.rules.append({"sequence": key})
            sequence.append((rule["sequence"], imported))
        else:
            script.add_rule(place, imported)
    script.rules[:] = _with_sequences(script.rules, sequences)


def _with_sequences(rules: list[Json], sequences: dict[str, list[tuple[int, Json]]]) -> list[Json]:
    """Puts the rules of each sequence, in their order, in the place of the first."""
    expanded: list[Json] = []
    for rule in rules:
        if "sequence" not in rule:
            expanded.append(rule)
            continue
        members = sorted(sequences[rule["sequence"]], key=_sequence_number)
        expanded += [member for _, member in members]
    return expanded


def _sequence_number(member: tuple[int, Json]) -> int:
    return member[0]


def _rule(script: ImportedScript, place: str, rule: Json) -> Json:
    api = APIS.get(str(rule.get("path")))
    if api is None:
        raise ImportFormatError(f"path {rule.get('path')}")
    script.leave_out_unknown(place, rule, RULE_KEYS)
    when: Json = {"api": api}
    _add_conditions(when, str(rule.get("match", "@")).strip())
    response = mapping(rule.get("response"), "response")
    status = response.get("status", 200)
    answer = _answer(str(response.get("content", "{}")))
    if status != 200:
        action = error_action(script, place, status, answer.get("error"))
    else:
        action = _with_templates(chat_action(script, place, answer))
    return {"name": place, "when": when, "then": action}


def _add_conditions(when: Json, expression: str) -> None:
    """Adds the conditions of a JMESPath expression.

    Raises:
        ImportFormatError: the expression is not supported.
    """
    if expression == "@":
        return
    for part in expression.split("&&"):
        match = CONTAINS.fullmatch(part.strip())
        operator = "contains"
        if match is None:
            match = EQUALS.fullmatch(part.strip())
            operator = "exact"
        if match is None:
            raise ImportFormatError(f"the expression {part.strip()!r}")
        text = match["single"]
        if text is None:
            text = match["json"]
        if match["model"] and operator == "exact":
            when["model"] = text
        elif match["header"]:
            when.setdefault("headers", {})[match["header"]] = {operator: text}
        elif match["index"]:
            _add_message(
                when, {"which": "last" if match["index"] == "-1" else "first", operator: text}
            )
        else:
            raise ImportFormatError(f"the expression {part.strip()!r}")


def _add_message(when: Json, condition: Json) -> None:
    conditions = when.get("message")
    if conditions is None:
        when["message"] = condition
    elif isinstance(conditions, list):
        conditions.append(condition)
    else:
        when["message"] = [conditions, condition]


def _answer(content: str) -> Json:
    """Returns the JSON of a reply, with a mark for each template.

    Raises:
        ImportFormatError: an expression of a template is not supported.
        ValueError: the reply is not JSON.
    """

    def mark(match: re.Match[str]) -> str:
        expressions = list(TEMPLATES)
        if match[1] not in expressions:
            raise ImportFormatError(f"the template {match[0]}")
        return f"{MARK}{expressions.index(match[1])}{MARK}"

    answer: Json = decode_untrusted(EXPRESSION.sub(mark, content), decoder=python_json)
    return answer


def _with_templates(value: Json) -> Json:
    """Replaces the marks in all texts of a value by their templates."""
    text = json.dumps(value, ensure_ascii=False)
    for index, template in enumerate(TEMPLATES.values()):
        text = text.replace(f"{MARK}{index}{MARK}", template)
    replaced: Json = decode_untrusted(text, decoder=python_json)
    return replaced

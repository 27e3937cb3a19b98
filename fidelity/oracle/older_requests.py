"""Requests as releases spell them that lack a field of the catalogue."""

import re
from collections.abc import Collection
from dataclasses import replace

from fidelity.oracle.cases import Case

SCHEMAS = {
    "/v1/chat/completions": "ChatCompletionRequest",
    "/v1/completions": "CompletionRequest",
}
"""vLLM's classes of requests with constraints, by path."""
CONSTRAINTS = "structured_outputs"
RESPONSES = "/v1/responses"
GUIDED = {
    name: f"guided_{name}" for name in ("json", "regex", "choice", "grammar", "whitespace_pattern")
} | {"structural_tag": "structural_tag"}
"""Constraints of `structured_outputs` -> fields of releases that lack it."""


def older_case(case: Case, absent: Collection[str]) -> Case:
    """Returns a case with the constraints of its request as fields of their own.

    `absent` are the fields, such as "CompletionRequest.structured_outputs", that a release lacks.
    Constraints without a field of their own stay: the release ignores them. A response has no such
    fields, but a format: its text is one of the choices in quotation marks. A pattern describes
    them, because the texts of an enumeration are written with escaped slashes.
    """
    if case.path == RESPONSES:
        return _older_response(case, absent)
    schema = SCHEMAS.get(case.path)
    if schema is None or not isinstance(case.body, dict):
        return case
    constraints = case.body.get(CONSTRAINTS)
    if not isinstance(constraints, dict) or not constraints or not constraints.keys() <= {*GUIDED}:
        return case
    if f"{schema}.{CONSTRAINTS}" not in absent:
        return case
    body = {name: value for name, value in case.body.items() if name != CONSTRAINTS}
    guided = {GUIDED[name]: value for name, value in constraints.items()}
    return replace(case, body=body | guided)


def _older_response(case: Case, absent: Collection[str]) -> Case:
    """Returns a case of a response whose choices are the format of its text."""
    if not isinstance(case.body, dict) or f"ResponsesRequest.{CONSTRAINTS}" not in absent:
        return case
    constraints = case.body.get(CONSTRAINTS)
    if not isinstance(constraints, dict) or [*constraints] != ["choice"]:
        return case
    body = {name: value for name, value in case.body.items() if name != CONSTRAINTS}
    pattern = "|".join(map(re.escape, constraints["choice"]))
    schema = {"type": "string", "pattern": f"^({pattern})$"}
    body["text"] = {"format": {"type": "json_schema", "name": "choice", "schema": schema}}
    return replace(case, body=body)

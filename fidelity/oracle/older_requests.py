"""Requests as releases spell them that lack a field of the catalogue."""

from dataclasses import replace

from fidelity.oracle.cases import Case
from vllm_facts.names import read_names

SCHEMAS = {
    "/v1/chat/completions": "ChatCompletionRequest",
    "/v1/completions": "CompletionRequest",
}
"""vLLM's classes of requests with constraints, by path."""
CONSTRAINTS = "structured_outputs"
GUIDED = {
    name: f"guided_{name}" for name in ("json", "regex", "choice", "grammar", "whitespace_pattern")
} | {"structural_tag": "structural_tag"}
"""Constraints of `structured_outputs` -> fields of releases that lack it."""


def older_case(case: Case, version: str) -> Case:
    """Returns a case with the constraints of its request as fields of their own.

    Constraints without such a field stay: the release ignores them.
    """
    schema = SCHEMAS.get(case.path)
    if schema is None or not isinstance(case.body, dict):
        return case
    constraints = case.body.get(CONSTRAINTS)
    if not isinstance(constraints, dict) or not constraints or not constraints.keys() <= {*GUIDED}:
        return case
    if f"{schema}.{CONSTRAINTS}" not in read_names().absent_fields(version):
        return case
    body = {name: value for name, value in case.body.items() if name != CONSTRAINTS}
    guided = {GUIDED[name]: value for name, value in constraints.items()}
    return replace(case, body=body | guided)

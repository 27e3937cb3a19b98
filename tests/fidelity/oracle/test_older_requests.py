"""Requests of the catalogue as releases spell them that lack a field."""

import pytest

from fidelity.oracle.cases import Case
from fidelity.oracle.older_requests import older_case
from vllm_facts.names import read_names

BODY = {"model": "m", "structured_outputs": {"regex": "a+", "whitespace_pattern": " "}}
CASE = Case(name="n", area="a", reason="r", path="/v1/chat/completions", body=BODY)
GUIDED = {"model": "m", "guided_regex": "a+", "guided_whitespace_pattern": " "}


@pytest.mark.parametrize(("version", "body"), [("0.10.2", GUIDED), ("0.11.2", BODY)])
def test_constraints_have_fields_of_their_own_before_011(
    version: str, body: dict[str, object]
) -> None:
    assert older_case(CASE, {*read_names().absent_fields(version)}).body == body

"""The constraint on the text of a reply."""

from typing import cast

from app.core.base.nested_json import decode_nested
from app.core.engine.constraints import Constraints, Grammar, SchemaError
from app.core.engine.request import Constraint, JsonSchema
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import StructuredOutputs
from app.core.protocol.validation import GenerationRequest, check_depth
from app.core.server.http.errors import bad_request, internal
from config.untrusted import UntrustedDataError

ANY_OBJECT: JsonObject = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["answer"],
}
"""Schema for `json_object`, which requires no more than an object."""


def tag_of(tag: str, request: GenerationRequest, schemas: Constraints) -> Grammar:
    """Returns the grammar of a structural tag.

    Raises:
        ApiError: 400 for an invalid tag, at once as in vLLM.
    """
    field = "structured_outputs" if request.structured_outputs is not None else "response_format"
    try:
        return schemas.compile_structural_tag(tag)
    except SchemaError as error:
        raise bad_request(f"Invalid {field} structural_tag specification.", field) from error


def constraint_of(structured_outputs: StructuredOutputs, schemas: Constraints) -> Constraint | None:
    """Returns the constraint on the text, but for a structural tag.

    Raises:
        ApiError: 400 for a bad constraint; 500 for a schema on which vLLM's engine fails.
    """
    if structured_outputs.json is not None:
        return Constraint(schema=_schema_of(structured_outputs.json, schemas))
    if structured_outputs.json_object:
        return Constraint(schema=ANY_OBJECT)
    if structured_outputs.regex is not None:
        return Constraint(regex=structured_outputs.regex)
    if structured_outputs.grammar is None:
        if structured_outputs.choice:
            return Constraint(choices=tuple(structured_outputs.choice))
        return None
    try:
        return Constraint(grammar=schemas.compile_grammar(structured_outputs.grammar))
    except SchemaError as error:
        raise bad_request(f"Invalid grammar specification: {error}") from None


def _schema_of(source: str | JsonObject, schemas: Constraints) -> JsonSchema:
    schema: object = source
    if isinstance(source, str):
        try:
            schema = decode_nested(source)
        except UntrustedDataError:
            raise bad_request("Invalid JSON grammar specification.") from None
        check_depth(schema)
    try:
        verdict = schemas.verdict_on(schema)
    except SchemaError as error:
        raise bad_request(f"The reply schema is not supported: {error}.") from None
    if verdict.refusal:
        raise bad_request(verdict.refusal)
    if verdict.fails:
        raise internal("Internal server error")
    return cast(JsonSchema, schema)

"""Values that satisfy a JSON Schema, and texts that match a regular expression."""

from app.schema.errors import SchemaError, Unsatisfiable
from app.schema.pattern import matching_text
from app.schema.ranges import Ranges
from app.schema.schemas import CompiledSchema, Schemas, check_schema, sample

__all__ = [
    "CompiledSchema",
    "Ranges",
    "SchemaError",
    "Schemas",
    "Unsatisfiable",
    "check_schema",
    "matching_text",
    "sample",
]

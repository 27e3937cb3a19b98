"""Values that satisfy a JSON Schema, and texts that match a regular expression."""

from app.schema.document import JSON
from app.schema.errors import SchemaError, Unsatisfiable
from app.schema.patterns import matching_text
from app.schema.ranges import Ranges
from app.schema.schemas import CompiledSchema, Schemas

__all__ = ["JSON", "CompiledSchema", "Ranges", "SchemaError", "Schemas", "Unsatisfiable", "matching_text"]

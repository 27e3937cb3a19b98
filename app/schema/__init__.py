"""Values that satisfy a JSON Schema, and texts that match a regular expression."""

from app.schema.errors import SchemaError, Unsatisfiable
from app.schema.ranges import Ranges, Size
from app.schema.schemas import Schemas

__all__ = ["Ranges", "SchemaError", "Schemas", "Size", "Unsatisfiable"]

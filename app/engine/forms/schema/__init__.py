"""Values that satisfy a JSON Schema, and texts that match a regular expression."""

from app.engine.forms.schema.bounds import Ranges, SchemaError, Size, Unsatisfiable
from app.engine.forms.schema.schemas import Schemas

__all__ = ["Ranges", "SchemaError", "Schemas", "Size", "Unsatisfiable"]

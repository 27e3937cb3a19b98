"""Values that satisfy a JSON Schema, and texts that match a regular expression."""

from app.engine.forms.schema.bounds import SchemaError, Size, Unsatisfiable
from app.engine.forms.schema.schemas import Schemas

__all__ = ["SchemaError", "Schemas", "Size", "Unsatisfiable"]

"""What the tests of schemas do again and again: compile, and draw a value."""

from random import Random

from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema.keywords import JSON
from config.settings import ToolSettings


def sample(schema: object, rng: Random, usual: ToolSettings, lenient: bool = False) -> JSON:
    """A value of `schema`, compiled for this one draw."""
    return Schemas().compile(schema, lenient).sample(rng, usual)


def check_schema(schema: object) -> None:
    """Raise SchemaError for what is no schema."""
    Schemas().compile(schema)

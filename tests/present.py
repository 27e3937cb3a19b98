"""Which extensions the repository has, for tests of several extensions at once."""

from importlib.util import find_spec

from app.core.built_in import PACKAGE


def is_present(name: str) -> bool:
    """Returns whether the folder of an extension was not deleted."""
    return find_spec(f"{PACKAGE}.{name}") is not None

"""Which extensions the repository has, for tests of several extensions at once."""

from app.core.built_in import present_extensions


def is_present(name: str) -> bool:
    """Returns whether an extension, and each one that it requires, was not deleted."""
    return any(extension.name == name for extension in present_extensions())

"""The real engine as a library: see `app.extensions.llm.names`."""

from typing import Any

from app.extensions.llm import names


def __getattr__(name: str) -> Any:
    """Imports a public name of the engine at its first use."""
    return getattr(names, name)

"""The SDKs of OpenAI and Anthropic, each imported when a test first uses it.

Their thousands of modules would take a fifth of the time in which pytest collects all tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic
    import openai


class LatePackage:
    """Has the classes of a package, and imports the package at the first use of one.

    It has no other members: pytest looks for some in all that a test module contains.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        if not member[0].isupper():
            raise AttributeError(member)
        return getattr(importlib.import_module(self._name), member)


if not TYPE_CHECKING:
    anthropic = LatePackage("anthropic")
    openai = LatePackage("openai")

"""Routes answer the methods that they name and no others, as vLLM's do."""

from __future__ import annotations

from typing import Any

from werkzeug.routing import Rule


class ExactRule(Rule):
    """A rule without the HEAD and OPTIONS that Flask would add to it."""

    def __init__(self, string: str, methods: Any = None, **options: Any) -> None:
        super().__init__(string, methods=methods, **options)
        if self.methods is not None and methods is not None:
            self.methods = {method.upper() for method in methods} - {"OPTIONS"}

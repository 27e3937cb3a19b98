"""Streams of chosen calls as in vLLM before 0.24."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Event


class CallStarts:
    """Joins the name of each call in a stream and the start of its arguments."""

    def __init__(self, request: JsonObject) -> None:
        self._is_named = request.get("tool_choice") != "required"
        self._held: dict[tuple[int, int], Any] = {}
        """Calls by the index of their choice and their own, until their arguments start."""

    def __call__(self, event: Event) -> Iterator[Event]:
        """Yields the older event; none for the name of a named call."""
        choices: Any = event[1].get("choices") or ()
        if not any([self._holds(choice) for choice in choices]):
            yield event

    def _holds(self, choice: Any) -> bool:
        """Modifies a choice; returns whether it waits for the start of the arguments."""
        delta = choice["delta"]
        is_last = choice["finish_reason"] is not None
        if delta.get("tool_calls") and delta.get("content", "") is None:
            del delta["content"]
        if is_last and not delta:
            begun = [self._held.pop(key) for key in [*self._held] if key[0] == choice["index"]]
            for call in begun:
                call["function"]["arguments"] = ""
                delta["tool_calls"] = begun
            return False
        calls: Any = delta.get("tool_calls") or ()
        return any([self._holds_call(choice, call, is_last) for call in calls])

    def _holds_call(self, choice: Any, call: Any, is_last: bool) -> bool:
        function = call["function"]
        key = choice["index"], call["index"]
        if "name" in function and "arguments" not in function:
            if self._is_named and not is_last:
                self._held[key] = call
                return True
            function["arguments"] = ""
        elif key in self._held:
            start = self._held.pop(key)
            start["function"]["arguments"] = function["arguments"]
            choice["delta"]["tool_calls"] = [start]
        elif not self._is_named:
            call["function"] = {"name": None, **function}
        return False

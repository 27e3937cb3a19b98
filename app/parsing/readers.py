"""Which reader finds the parts of a request's text."""

from __future__ import annotations

from collections.abc import Callable

from app.engine.outputs import PartReader
from app.engine.request import EngineRequest
from app.parsing.hermes import HermesReader
from app.parsing.listed import ListedReader, NamedReader
from app.parsing.thoughts import ThoughtReader


def readers(tool_call_parser: str) -> Callable[[EngineRequest], PartReader | None]:
    """`tool_call_parser` is how the model writes calls of its own choice: `llama3_json`, else as Hermes."""
    as_llama = tool_call_parser == "llama3_json"

    def reader_of(request: EngineRequest) -> PartReader | None:
        calls = _calls_reader(request, as_llama)
        if not request.reasoning:
            return calls
        if request.form is None:
            return ThoughtReader(calls)
        thoughts = request.form.thoughts  # else a text of a form has no room for any
        return calls if thoughts is None else ThoughtReader(calls, begun=thoughts.begin_id is None)

    return reader_of


def _calls_reader(request: EngineRequest, as_llama: bool) -> PartReader | None:
    calls = request.tool_calls
    if calls is None:
        return None
    if calls.least:
        return NamedReader(calls.tools[0].name) if calls.named else ListedReader(forced=True)
    return ListedReader() if as_llama else HermesReader()

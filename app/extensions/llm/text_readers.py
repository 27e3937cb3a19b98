"""The reader of a request's text: which of the readers of the core apply to it."""

from collections.abc import Callable
from functools import partial

from app.core.engine.parsing import Read, TextReader, hermes, listed, named, plain, thoughts
from app.core.engine.request import EngineRequest


def readers(tool_call_parser: str) -> Callable[[EngineRequest], TextReader | None]:
    """Returns a function that makes a request's reader.

    `tool_call_parser` is `llama3_json`; all other values mean Hermes.
    """
    read_calls: Read = hermes
    if tool_call_parser == "llama3_json":
        read_calls = listed

    def reader_of(request: EngineRequest) -> TextReader | None:
        read: Read = plain
        calls = request.tool_calls
        if calls is not None:
            read = read_calls
            if calls.min_calls:
                read = partial(listed, forced=True)
                if calls.named:
                    read = named(calls.tools[0].name)
        form = request.form
        if request.reasoning and (form is None or form.thoughts is not None):
            # A constrained text without `thoughts` has no room for them.
            begun = form is None or form.thoughts is None or form.thoughts.begin_id is None
            read = partial(thoughts, read_text=read, begun=begun)
        if read is plain:
            return None
        return TextReader(read)

    return reader_of

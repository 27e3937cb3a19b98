"""The reader of a request's text: which of the readers of the core apply to it."""

from collections.abc import Callable
from functools import partial

from app.core.engine.request import EngineRequest
from app.core.engine.tool_replies import ToolCallReader
from app.extensions.tool_calls.parsing import (
    CallRead,
    Read,
    TextReader,
    named,
    plain,
    required_calls,
    thoughts,
)
from vllm_facts.reasoning_marks import THINK, ReasoningMarks


def readers(
    call_reader: ToolCallReader | None, marks: ReasoningMarks = THINK
) -> Callable[[EngineRequest], TextReader | None]:
    """Returns a function that makes a request's reader; None reads no calls but required ones."""

    def reader_of(request: EngineRequest) -> TextReader | None:
        read: Read = plain
        calls = request.tool_calls
        if calls is not None:
            if calls.named:
                read = named(calls.tools[0].name)
            elif calls.min_calls:
                read = required_calls
            elif call_reader is not None:
                read = CallRead(call_reader, calls.tools, calls.streams)
        form = request.form
        if request.reasoning and (form is None or form.thoughts is not None):
            # A constrained text without `thoughts` has no room for them.
            begun = form is None or form.thoughts is None or form.thoughts.begin_id is None
            read = partial(thoughts, read_text=read, begun=begun, marks=marks)
        if read is plain:
            return None
        return TextReader(read)

    return reader_of

"""Base of the writers of Messages and Responses, whose answers are lists of blocks."""

from collections.abc import Callable, Mapping

from app.core.api.choice_state import Segment
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Part, Tokens
from app.core.protocol.common import encode


class BlockWriter(ResponseWriter):
    """Writes the answer to one request: content blocks of Messages, items of Responses.

    A stream opens a block when a new part shows something, and numbers blocks from 0.
    """

    _render_block_start: Callable[[Segment], bytes]
    _render_texts: Callable[[Segment, Tokens], bytes]
    _render_block_end: Callable[[Segment], bytes]

    def __init__(self, new_id: Callable[[], str]) -> None:
        super().__init__(1)
        self._new_id = new_id
        self._open_block: Segment | None = None
        self._index = -1
        """Number of the last block that was opened."""

    def _render_tokens(self, output: Tokens) -> bytes:
        segment = self._open_block
        if segment is not None and output.part is segment.part:
            # Nearly every output of a paced stream comes here.
            self.choices[0].count(output)
            segment.texts += output.texts
            return self._render_texts(segment, output)
        segment = self._append(output)
        if segment is None:
            return b""
        if segment is self._open_block:
            return self._render_texts(segment, output)
        end = self._close_block()
        self._open_block = segment
        self._index += 1
        return b"".join(
            (end, self._render_block_start(segment), self._render_texts(segment, output))
        )

    def _close_block(self) -> bytes:
        segment = self._open_block
        self._open_block = None
        if segment is None:
            return b""
        return self._render_block_end(segment)

    def collect(self, output: EngineOutput) -> None:
        """Collects an output for the whole answer."""
        if type(output) is not Tokens:
            super().collect(output)
        elif not self.choices[0].collect_cut_off_call(output, self._segment_id):
            self._append(output)

    def _append(self, output: Tokens) -> Segment | None:
        """Appends the tokens to their block and returns it.

        Returns None when the tokens show nothing; images never do.
        """
        if output.part is not None and output.part.kind == "image":
            self.choices[0].count(output)
            return None
        return self.choices[0].append(output, self._segment_id)

    def _segment_id(self, part: Part | None) -> str:
        return self._new_id()


def named_event(name: str, fields: Mapping[str, object]) -> bytes:
    """Returns a server-sent event with a name and JSON data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(fields))

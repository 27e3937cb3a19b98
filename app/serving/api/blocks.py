"""Writing of answers that keep a reply's order: consecutive tokens of one part are one block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

from app.engine.core.outputs import EngineOutput, Part, Tokens
from app.serving.api.writer import ResponseWriter, Segment
from app.serving.protocol.common import encode


class BlockWriter(ResponseWriter):
    """Writes the answer to one request: content blocks of Messages, items of Responses.

    A stream opens a block where another part shows something, and numbers blocks from 0.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        super().__init__(1)
        self._new_id = new_id
        self._open: Segment | None = None
        """The open block of a stream."""
        self._index = -1

    def _tokens(self, output: Tokens) -> bytes:
        segment = self._open
        if segment is not None and output.part is segment.part:
            # Nearly every output of a paced stream comes here.
            self.choices[0].count(output)
            segment.texts += output.texts
            return self._texts(segment, output)
        segment = self._add(output)
        if segment is None or segment is self._open:
            return b"" if segment is None else self._texts(segment, output)
        end, self._open = self._close(), segment
        self._index += 1
        return b"".join((end, self._begin_block(segment), self._texts(segment, output)))

    def _close(self) -> bytes:
        segment, self._open = self._open, None
        return b"" if segment is None else self._end_block(segment)

    def take(self, output: EngineOutput) -> None:
        if type(output) is not Tokens:
            super().take(output)
        elif not self.choices[0].cut_off(output, self._id_of):
            self._add(output)

    def _add(self, output: Tokens) -> Segment | None:
        """Adds the tokens to their block and returns it; None when they show nothing, as images."""
        if output.part is not None and output.part.kind == "image":
            self.choices[0].count(output)
            return None
        return self.choices[0].add(output, self._id_of)

    def _id_of(self, part: Part | None) -> str:
        return self._new_id()

    @abstractmethod
    def _begin_block(self, segment: Segment) -> bytes: ...

    @abstractmethod
    def _texts(self, segment: Segment, output: Tokens) -> bytes:
        """Returns the events of the tokens' texts, which belong to the open block."""

    @abstractmethod
    def _end_block(self, segment: Segment) -> bytes: ...


def named_event(name: str, fields: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(fields))

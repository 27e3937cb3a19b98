"""The body of a streamed gRPC answer."""

from collections.abc import Iterator

from app.core.server.http.response import StreamingBody


class MessageFeed(StreamingBody):
    """Messages with their prefixes; `endless` feeds last until the client or the server leaves."""

    def __init__(self, messages: Iterator[bytes], endless: bool = False) -> None:
        super().__init__()
        self._messages = messages
        self.endless = endless

    def __iter__(self) -> Iterator[bytes]:
        for data in self._messages:
            self.bytes_sent += len(data)
            yield data

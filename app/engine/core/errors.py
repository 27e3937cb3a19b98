"""Errors of the engine. `str` of an error is one sentence for the client.

HTTP is unknown here: `app.serving.api.errors` maps each error to a status.
"""

from __future__ import annotations


class EngineError(Exception):
    """A request or an operator's command that the engine does not carry out."""


class Draining(EngineError):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down and takes no new requests.")


class TooManyRequests(EngineError):
    """Running and waiting sequences would exceed `max-num-queued-reqs`."""

    def __init__(self, unfinished: int, most: int) -> None:
        super().__init__(f"The server holds {unfinished} of at most {most} requests; retry later.")


class QueueFull(EngineError):
    """No slot is free, and `max-waiting-queue-length` sequences are waiting."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"The waiting requests queue is full: {waiting} wait already; retry later.")


class KVCacheFull(EngineError):
    """The prompt does not fit into the KV cache now, and `kv-cache-full` forbids waiting."""

    def __init__(self) -> None:
        super().__init__("The KV cache has too few free blocks for the prompt; retry later.")


class PromptExceedsCache(EngineError):
    """The prompt exceeds the whole KV cache. Sizes are in tokens."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"The prompt of {tokens} tokens exceeds the KV cache of {most} tokens.")


class Aborted(EngineError):
    """An operator has ended the request, and no partial answer exists."""

    def __init__(self) -> None:
        super().__init__("The request was aborted by the server.")


class EngineDead(EngineError):
    """The engine process has ended, and its successor is not ready."""

    def __init__(self) -> None:
        super().__init__("The engine has stopped and is being started again; retry later.")


class CommandFailed(EngineError):
    """The engine refuses an operator's command; the message gives the reason."""


class EngineFailed(EngineError):
    """The engine failed during a request; the message gives the reason."""


class RequestRefused(EngineError):
    """The engine cannot serve the request; the message gives the reason."""


class SchemaUnsatisfiable(EngineError):
    """No reply satisfies the requested schema or grammar."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"No reply can have the form that is asked for: {reason}.")


class CallerLeft(EngineError):
    """The client disconnected before its operation finished."""

    def __init__(self) -> None:
        super().__init__("The client left before what it had asked for was done.")


class PauseNotComplete(EngineError):
    """The KV cache's memory can be released only while the engine is paused and nothing runs."""

    def __init__(self) -> None:
        super().__init__("To release the KV cache requires a completed pause first.")


class MemoryNotResident(EngineError):
    """Memory to release has been released already."""

    def __init__(self) -> None:
        super().__init__("To release the KV cache requires all memory to be resident.")

"""What the engine refuses or cannot do. `str` of an error is one sentence for whoever asked.

HTTP is not known here: `app.api.errors` says which status each of them has.
"""

from __future__ import annotations


class EngineError(Exception):
    """A request, or an operator's command, that the engine does not carry out."""


class Draining(EngineError):
    """The server goes down."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down and takes no new requests.")


class TooManyRequests(EngineError):
    """More sequences than `max-num-queued-reqs` would run and wait together."""

    def __init__(self, unfinished: int, most: int) -> None:
        super().__init__(f"The server holds {unfinished} of at most {most} requests; retry later.")


class QueueFull(EngineError):
    """No slot is free, and `max-waiting-queue-length` sequences wait already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"The waiting requests queue is full: {waiting} wait already; retry later.")


class KVCacheFull(EngineError):
    """The prompt does not fit into the KV cache now, and `kv-cache-full` says that it must not wait."""

    def __init__(self) -> None:
        super().__init__("The KV cache has too few free blocks for the prompt; retry later.")


class PromptExceedsCache(EngineError):
    """The prompt would not fit into the KV cache even if it were alone. Sizes are in tokens."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"The prompt of {tokens} tokens exceeds the KV cache of {most} tokens.")


class Aborted(EngineError):
    """An operator has ended the request, and there is no part of an answer that could be given."""

    def __init__(self) -> None:
        super().__init__("The request was aborted by the server.")


class EngineDead(EngineError):
    """The process of the engine has ended, and no other one is ready yet."""

    def __init__(self) -> None:
        super().__init__("The engine has stopped and is being started again; retry later.")


class CommandFailed(EngineError):
    """The engine does not do what an operator wants; it says why."""


class EngineFailed(EngineError):
    """The engine could not finish a request; it says why."""


class RequestRefused(EngineError):
    """The engine cannot serve such a request; it says why."""


class SchemaUnsatisfiable(EngineError):
    """No reply has the form that the request wants."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"No reply can have the form that is asked for: {reason}.")


class CallerLeft(EngineError):
    """Who asked has gone, and nobody is to be told."""

    def __init__(self) -> None:
        super().__init__("The client left before what it had asked for was done.")


class PauseNotComplete(EngineError):
    """Memory of the KV cache is released only while nothing runs, and nothing may begin."""

    def __init__(self) -> None:
        super().__init__("To release the KV cache requires a completed pause first.")


class MemoryNotResident(EngineError):
    """What is to be released has been released already."""

    def __init__(self) -> None:
        super().__init__("To release the KV cache requires all memory to be resident.")

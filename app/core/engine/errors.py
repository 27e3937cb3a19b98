"""Errors of the engine. `str` of an error is one sentence for the client.

`app.core.api.errors` maps each error to an HTTP status.
"""

from __future__ import annotations

from config.declaration import ConfigError


class DatasetError(ConfigError):
    """A dataset cannot be used, downloaded or built."""


class EngineError(Exception):
    """A request or an operator's command that the engine does not carry out."""

    text = "{}"
    """The sentence; the arguments of the error replace its braces."""

    def __init__(self, *values: object) -> None:
        super().__init__(self.text.format(*values))


class DrainingError(EngineError):
    """The server is shutting down."""

    text = "The server is shutting down and takes no new requests."


class ShutdownError(EngineError):
    """The server is shutting down as vLLM does."""

    text = "cannot schedule new futures after shutdown"


class TooManyRequestsError(EngineError):
    """Running and waiting sequences would exceed `max-num-queued-reqs`."""

    text = (
        "The engine is currently busy and cannot accept new requests: it holds {} of at most {}. "
        "Please try again later or on a different instance."
    )


class QueueFullError(EngineError):
    """No slot is free, and `max-waiting-queue-length` sequences are waiting."""

    text = "The waiting requests queue is full: {} wait already; retry later."


class PromptExceedsCacheError(EngineError):
    """The prompt has more tokens than the KV cache."""

    text = "The prompt of {} tokens exceeds the KV cache of {} tokens."


class AbortedError(EngineError):
    """An operator has ended the request, and no partial answer exists."""

    text = "The request was aborted by the server."


class EnginePausedError(EngineError):
    """A pause rejects new requests."""

    text = "Generation is paused. Please retry after it resumes."


class EngineDeadError(EngineError):
    """No engine can compute."""

    text = "The engine has stopped and is being started again; retry later."


class CommandFailedError(EngineError):
    """The engine refuses an operator's command; the message gives the reason."""


class EngineFailedError(EngineError):
    """The engine failed during a request; the message gives the reason."""


class RequestRejectedError(EngineError):
    """The engine cannot serve the request; the message gives the reason."""


class UnsatisfiableSchemaError(EngineError):
    """No reply can have the requested form; the argument gives the reason."""

    text = "No reply can have the form that is asked for: {}."


class PauseNotCompleteError(EngineError):
    """The KV cache cannot be released while requests run."""

    text = "To release the KV cache requires a completed pause first."


class MemoryNotResidentError(EngineError):
    """The KV cache cannot be released while the server sleeps."""

    text = "To release the KV cache requires all memory to be resident."

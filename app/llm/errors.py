"""Errors of the engine; messages are one line each."""


class LLMError(Exception):
    """Base of all errors of the engine."""


class ModelLoadError(LLMError):
    """The weights, their configuration or their tokenizer cannot be used: there is no engine."""


class RequestError(LLMError, ValueError):
    """A request that cannot be served as it stands."""


class QueueFull(LLMError, RuntimeError):
    """Too many requests wait: try again later."""

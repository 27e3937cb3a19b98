"""Errors of the engine; messages are one line each."""


class LLMError(Exception):
    """Base of all errors of the engine."""


class ModelLoadError(LLMError):
    """The weights, their configuration or their tokenizer cannot be used, so there is no engine."""


class RequestError(LLMError, ValueError):
    """A request is not valid, or not supported by the model."""


class QueueFull(LLMError, RuntimeError):  # noqa: N818  # public name of `app.llm`
    """Too many requests wait; a later attempt may succeed."""

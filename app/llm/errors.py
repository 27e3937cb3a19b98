"""What goes wrong in the engine; messages are one line each."""


class LLMError(Exception):
    """The family."""


class ModelLoadError(LLMError):
    """The weights, their configuration or their tokenizer cannot be used: there is no engine."""


class RequestError(LLMError, ValueError):
    """A request that cannot be served as it stands."""


class QueueFull(LLMError, RuntimeError):
    """As many requests wait as may wait: come again later."""

"""The version of vLLM that a server plays unless another one is set."""

from typing import Final

DEFAULT_VERSION: Final = "0.32"

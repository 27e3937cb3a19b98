"""Settings of Cohere's Chat API."""

from typing import Annotated

from config.declaration import About, Section


class CohereSettings(Section, frozen=True, kw_only=True):
    """Cohere's Chat API."""

    enable_cohere_api: Annotated[bool, About(env=("VLLM_ENABLE_COHERE_API",))] = False
    """Serve /cohere/v2/chat and, with enable-scale-out, /cohere/v2/chat/render."""
    cohere_is_reasoning_model: bool = True
    """Return reasoning as a thinking block. If this setting is false, reasoning that precedes tool
    calls is returned as the tool plan."""

"""Settings of the render service."""

from typing import Annotated

from config.declaration import SIMULATED, PositiveDuration, Section


class RenderServiceSettings(Section, frozen=True, kw_only=True):
    """Render service, which tokenizes prompts."""

    render_url: Annotated[str | None, SIMULATED] = None
    """Base URL of the vLLM render service that tokenizes prompts."""
    render_timeout: PositiveDuration = 30.0
    """Maximum time to wait for a response from the render service."""
    mm_render_timeout: PositiveDuration = 60.0
    """Maximum time to wait for a response from the render service if the service must fetch
    images."""
    render_only: bool = False
    """Like vllm launch render, run as a render service that only tokenizes and renders prompts."""

"""Settings of the render service."""

from typing import Annotated

from config.declaration import SIMULATED, PositiveDuration, Section


class RenderServiceSettings(Section, frozen=True, kw_only=True):
    """Render service, which tokenizes prompts."""

    render_url: Annotated[str | None, SIMULATED] = None
    """Base URL of a vLLM render service that tokenizes prompts instead of this process."""
    render_timeout: PositiveDuration = 30.0
    """Maximum time to wait for a response from the render service."""
    mm_render_timeout: PositiveDuration = 60.0
    """Maximum time to wait for the render service if messages contain images, which the service has
    to fetch."""
    render_only: bool = False
    """Run as a render service that only tokenizes and renders prompts, like vllm launch render."""

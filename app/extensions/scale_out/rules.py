"""Rules of scale-out that differ between versions of vLLM."""

from msgspec import Struct

from app.core.api.pipeline import RequestPipeline
from app.extensions.scale_out.protocol import GenerateRequest


class ScaleOutRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    request_type: type[GenerateRequest] = GenerateRequest
    """Type of the body of POST /inference/v1/generate."""
    describes_parsing: bool = True
    """Rendered requests describe how the reply is parsed, and transfers have fields."""
    renders_texts: bool = False
    """Rendered requests are the conversation and its prompts, with their texts."""
    is_gated: bool = True
    """The routes are off without `--enable-scale-out`."""
    follows_rank: bool = True
    """X-data-parallel-rank chooses the engine of POST /inference/v1/generate."""
    aborts_in_dev_mode: bool = True
    """The development mode has POST /abort_requests."""
    requires_chat: bool = True
    """A server with a parser derenders chats only with their request."""
    derenders_as_generated: bool = True
    """A derendered answer equals the generated one."""


def rules_of(pipeline: RequestPipeline) -> ScaleOutRules:
    """Returns the rules of the version that the server plays."""
    return pipeline.version.rules(ScaleOutRules)

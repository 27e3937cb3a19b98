"""Settings of the Responses API."""

from typing import Annotated, Literal

from config.declaration import About, Section


class ResponsesSettings(Section, frozen=True, kw_only=True):
    """The Responses API."""

    enable_responses_store: Annotated[bool, About(env=("VLLM_ENABLE_RESPONSES_API_STORE",))] = False
    """Store responses from /v1/responses so that clients can read, cancel, and continue them."""
    responses_dialect: Literal["vllm", "open"] = "vllm"
    """Response format for /v1/responses: vLLM's format (vllm) or that of the Open Responses
    specification (open), which requires additional keys and events."""

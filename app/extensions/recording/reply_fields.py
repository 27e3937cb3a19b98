"""Names of fields in recorded answers: parts of a reply, and losses, which are left out."""

from collections.abc import Iterator, Mapping
from typing import Any

MESSAGE_FIELDS = frozenset(
    ("role", "name", "content", "reasoning", "reasoning_content", "tool_calls")
)
"""Fields of a message of a chat that a reply has."""
CHOICE_FIELDS = frozenset(
    ("index", "message", "delta", "text", "finish_reason", "stop_reason", "native_finish_reason")
)
"""Fields of a choice that a reply has, or that the server sets by the request."""
ANSWER_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage", "error"))
"""Fields of a chat or a completion that a reply has, or that the server sets."""
ITEM_FIELDS = frozenset(
    ("type", "id", "status", "role", "content", "summary", "name", "arguments", "input", "call_id")
)
"""Fields of an output item of the Responses API that a reply has."""
PART_FIELDS = frozenset(("type", "text"))
"""Fields of a part of an output item that a reply has."""
STOP_FIELDS = frozenset(
    ("type", "id", "role", "model", "content", "usage", "stop_reason", "stop_sequence")
)
"""Fields of a whole message of the Messages API, or of the end of its stream."""
SIGNATURES = frozenset(
    (
        "encrypted_content",
        "extra_content",
        "reasoning_details",
        "thought_signature",
        "thoughtSignature",
    )
)
"""Fields with signatures and encrypted thoughts, some with a second form of the reasoning."""
STATISTICS = frozenset(
    (
        "generationId",
        "latency_checkpoint",
        "metrics",
        "obfuscation",
        "p",
        "provider",
        "provider_metadata",
        "request_id",
        "seed",
        "service_tier",
        "system_fingerprint",
        "time_info",
        "timings",
        "token_id",
        "usage_breakdown",
        "x_groq",
    )
)
"""Fields about the server and the computation of an answer, which no client shows."""
REMARKS = frozenset(
    (
        "avgLogprobs",
        "container",
        "content_filter_results",
        "context_management",
        "phase",
        "prompt_filter_results",
        "safetyRatings",
    )
)
"""Remarks of a provider about a reply, which vLLM never sends. They are listed as ignored."""

MAX_LOSSES = 20
"""Most losses of an answer that are listed."""
MAX_LOSS_CHARACTERS = 120


def add_loss(losses: list[str], loss: str) -> None:
    """Adds a loss to a list, which has each once and at most `MAX_LOSSES`."""
    loss = loss[:MAX_LOSS_CHARACTERS]
    if loss not in losses and len(losses) < MAX_LOSSES:
        losses.append(loss)


def unknown_fields(fields: Mapping[str, Any], kept: frozenset[str]) -> Iterator[str]:
    """Yields the names of fields with a value that a reply does not have."""
    for name, value in fields.items():
        if value and name not in kept and name not in SIGNATURES and name not in STATISTICS:
            yield str(name)

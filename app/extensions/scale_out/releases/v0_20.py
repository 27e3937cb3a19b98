"""Changes of vLLM 0.20 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Change, Reading

GENERATE = "/inference/v1/generate"


def ignore_stream(request: Any) -> None:
    """Answers as a whole."""
    request.pop("stream", None)
    request.pop("stream_options", None)


CHANGES = (
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` ignores `stream`.",
        after="`/inference/v1/generate` streams tokens.",
        forms=(Reading(paths=(GENERATE,), read=ignore_stream),),
    ),
)

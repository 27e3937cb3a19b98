"""Changes of vLLM 0.11.1 to pooling."""

from typing import Any

from app.core.versions.change import Change, Reading, Rules
from app.extensions.pooling.encodings import refuse_encoding

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"
PATHS = ("/v1/embeddings", "/pooling")
ENCODINGS = "'float' or 'base64'"


def refuse_bytes(request: Any) -> None:
    """Refuses bytes.

    Raises:
        ApiError: 400.
    """
    refuse_encoding(request, "bytes", known=ENCODINGS)


CHANGES = (
    Change(
        area="Pooling",
        before="`encoding_format` is `float` or `base64`.",
        after="It may be `bytes`, too.",
        forms=(Reading(paths=PATHS, read=refuse_bytes),),
    ),
    Change(
        area="Pooling",
        before="`/pooling` has the output of each token, which chunked prefills prevent. By "
        "default, it fails with the status 200.",
        after="`/pooling` has the tasks for whole texts, such as `embed`.",
        forms=(Rules(POOLING_RULES, {"task_choice": "none"}),),
        routes=("/pooling",),
    ),
)

"""Changes of vLLM 0.13 to pooling."""

from typing import Any

from app.core.versions.change import Change, Reading, Rules
from app.extensions.pooling.encodings import refuse_encoding

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"
PATHS = ("/v1/embeddings", "/pooling")
ENCODINGS = "'float', 'base64' or 'bytes'"


def refuse_bytes_only(request: Any) -> None:
    """Refuses bytes without metadata.

    Raises:
        ApiError: 400.
    """
    refuse_encoding(request, "bytes_only", known=ENCODINGS)


CHANGES = (
    Change(
        area="Pooling",
        before="`encoding_format` is `float`, `base64` or `bytes`.",
        after="It may be `bytes_only`, too.",
        forms=(Reading(paths=PATHS, read=refuse_bytes_only),),
    ),
    Change(
        area="Pooling",
        before="`/pooling` has the tasks for whole texts, such as `embed`. It fails without a "
        "task.",
        after="`/pooling` has the tasks for tokens, too. The default is such a task.",
        forms=(Rules(POOLING_RULES, {"task_choice": "explicit"}),),
        routes=("/pooling",),
    ),
)

"""Rules of pooling that differ between versions of vLLM."""

from typing import Literal

from msgspec import Struct

TaskChoice = Literal["served", "supported", "token", "explicit", "none"]
"""Which tasks POST /pooling has for a model that serves one task and supports another.

`served`: that task alone. `supported`: both, by default the served one. `token`: both, by default
the one for tokens. `explicit`: the served one, which requests have to name. `none`: it fails.
"""


class PoolingRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    task_choice: TaskChoice = "served"
    """Tasks of POST /pooling."""
    names_task: bool = True
    """Errors of a task name the field."""
    counts_pairs: bool = False
    """Scores count both texts of each pair, and a token between them."""
    embeds_tokens: bool = True
    """/v1/embeddings of a model for `token_embed` returns a vector for each token."""

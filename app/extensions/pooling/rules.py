"""Rules of pooling that differ between versions of vLLM."""

from msgspec import Struct


class PoolingRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    embeds_tokens: bool = True
    """/v1/embeddings of a model for `token_embed` returns a vector for each token."""

"""Layers that keep something other than keys and values of each head: their sizes in a model."""

from collections.abc import Mapping

from msgspec import Struct

SCALED_INDEX_BYTES = 4
"""Bytes of the scale of a token's index in fp8."""
SPARSE_FP8_BYTES = 656
"""Bytes of a token's latent in fp8 beside a sparse index: it has 16-bit rope numbers and scales."""
STATE_BYTES: Mapping[str, int] = {"float32": 4}
"""Format of a recurrent state -> bytes of a number; other formats have 16 bits."""
SCAN_OPERATIONS = 6
"""Operations for each number of the state and each token of a prompt."""


class LatentShape(Struct, frozen=True, kw_only=True):
    """Attention whose heads share one compressed vector for each token (MLA)."""

    rank: int
    """Compressed numbers of a token."""
    rope: int
    """Numbers of a token with its position, beside the compressed ones."""
    query_rank: int
    """Compressed numbers of a query; 0 if queries are not compressed."""
    key: int
    """Numbers of a head's key without those of the position."""
    value: int
    """Numbers of a head's value."""
    top_tokens: int
    """Most tokens that a query sees; 0 if it sees all."""
    index_heads: int
    index_width: int
    """Numbers of a token that decide whether a query sees the token."""
    index_layers: int = 1
    """Layers that share an index."""

    @property
    def cached(self) -> int:
        """Numbers of a token in the cache, on each device."""
        return self.rank + self.rope

    @property
    def index_bytes(self) -> int:
        """Bytes of a token's index, in fp8 with a scale."""
        if not self.top_tokens:
            return 0
        return self.index_width + SCALED_INDEX_BYTES

    @property
    def stored_index_bytes(self) -> float:
        """The same, of a layer's share where layers share an index."""
        return self.index_bytes / self.index_layers

    def token_bytes(self, number_bytes: float) -> float:
        """Returns the bytes of a token in the cache of a layer."""
        latent = self.cached * number_bytes
        if self.top_tokens and number_bytes < 2:
            latent = SPARSE_FP8_BYTES
        return latent + self.stored_index_bytes

    def weights(self, width: int, heads: int) -> int:
        """Returns the weights of a layer's attention."""
        query = self.key + self.rope
        compressed = width * (self.rank + self.rope)
        heads_of_rank = self.rank * heads * (self.key + self.value)
        out = heads * self.value * width
        if self.query_rank:
            queries = width * self.query_rank + self.query_rank * heads * query
        else:
            queries = width * heads * query
        index = 0
        if self.top_tokens:
            index = self.query_rank * self.index_heads * self.index_width
            index += width * (self.index_width + self.index_heads)
        return compressed + heads_of_rank + out + queries + index


class RecurrentShape(Struct, frozen=True, kw_only=True):
    """Layers with a state of fixed size for each sequence: linear attention, or state spaces."""

    columns: int
    """Columns of the products into a layer."""
    inner_width: int
    """Numbers of a token that leave the state."""
    state: int
    """Numbers of a sequence's state."""
    state_format: str
    convolved: int
    """Numbers of a sequence that the convolution keeps, in 16 bits."""

    @property
    def sequence_bytes(self) -> int:
        """Bytes of a sequence in a layer."""
        return self.state * STATE_BYTES.get(self.state_format, 2) + 2 * self.convolved

    @property
    def token_operations(self) -> int:
        """Operations for a token of a prompt, beside the products."""
        return SCAN_OPERATIONS * self.state

    def weights(self, width: int) -> int:
        """Returns the weights of a layer."""
        return width * (self.columns + self.inner_width)

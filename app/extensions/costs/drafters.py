"""Drafters of speculative decoding: their shapes and weights beside those of a model."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.costs.engine_options import BF16_BYTES
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import CostShape, cost_shape
from app.extensions.costs.speculation import (
    MTP,
    NGRAM,
    PRICED_METHODS,
    Speculation,
    find_lengths,
)
from app.extensions.costs.storage import StorageFormat
from app.extensions.costs.storage_formats import read_storage
from config.declaration import ConfigError
from config.untrusted import UntrustedDataError
from vllm_facts.model_shape import text_fields

DRAFT_VOCABULARY = 32_000
"""Tokens that a drafter of EAGLE-3 usually knows."""
SPARSE_WIDTH = 6
"""Inner width of an EAGLE-3 layer beside a mixture, in widths of the model."""
DRAFT_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
)
"""Fields of the `config.json` of an EAGLE-3 drafter."""


class Drafter(Struct, frozen=True, kw_only=True):
    """A drafter beside a model."""

    speculation: Speculation
    shape: CostShape | None
    """Layers and output of the drafter; None for drafts from the text itself."""
    storage: StorageFormat
    verified_columns: int
    """Tokens of the model's vocabulary."""
    fused_widths: int = 0
    """Hidden states that the drafter fuses with one product before its layers."""
    input_widths: int = 1
    """Width of the input of its attention, in widths of the model."""
    shares_tables: bool = False
    """The drafter uses the embedding and the output of the model."""

    @property
    def passes(self) -> int:
        """Passes of the drafter in a step."""
        if self.shape is None:
            return 0
        return 1 if self.speculation.in_parallel else self.speculation.draft_count

    @property
    def rows(self) -> int:
        """Tokens of a sequence in each pass but the first."""
        return self.speculation.draft_count if self.speculation.in_parallel else 1

    @property
    def weight_bytes(self) -> float:
        """Bytes of the drafter's weights on all devices."""
        shape = self.shape
        if shape is None:
            return 0.0
        size = self.storage.model_bytes(shape)
        if self.shares_tables:
            size -= BF16_BYTES * shape.table_weights
        return size + BF16_BYTES * self.input_weights(is_first=True)

    def input_weights(self, *, is_first: bool) -> int:
        """Returns the weights of a pass that a plain layer does not have."""
        shape = self.shape
        if shape is None:
            return 0
        width = shape.hidden_size
        heads = shape.num_attention_heads + 2 * shape.num_key_value_heads
        weights = (self.input_widths - 1) * width * heads * shape.head_dim
        if is_first:
            weights += self.fused_widths * width * width
        return weights


def make_drafter(
    speculation: Speculation, shape: CostShape, storage: StorageFormat, model: str
) -> Drafter:
    """Returns the drafter of a speculation; `model` is the name of the model with `shape`.

    Raises:
        ConfigError: The cost of the method is unknown, or its model is.
    """
    method = speculation.method
    if method not in PRICED_METHODS:
        raise ConfigError(
            f"speculative-config: the draft cost for method {method} is unknown; use one of"
            f" {', '.join(PRICED_METHODS)}"
        )
    plain = StorageFormat(weight_bytes=BF16_BYTES, kernels="bf16")
    drafter = Drafter(
        speculation=speculation, shape=None, storage=plain, verified_columns=shape.vocab_size
    )
    if method == NGRAM:
        return drafter
    if method == "draft_model":
        return _draft_model(drafter)
    if method == "eagle3":
        layer = _eagle3_shape(speculation, shape, model)
        return replace(drafter, shape=layer, fused_widths=3, input_widths=2)
    layer = _one_layer(shape)
    if method == MTP:
        return replace(drafter, shape=layer, storage=storage, fused_widths=2, shares_tables=True)
    dense = replace(layer, num_experts=0, num_local_experts=0)
    return replace(drafter, shape=dense, fused_widths=2, shares_tables=True)


def _one_layer(shape: CostShape) -> CostShape:
    """Returns the shape of one layer of the model, the last, with full attention."""
    return replace(
        shape,
        num_hidden_layers=1,
        mlp_only_layers=[],
        decoder_sparse_step=1,
        sliding_window=0,
        layer_types=[],
    )


def _draft_model(drafter: Drafter) -> Drafter:
    model = drafter.speculation.model
    if not model:
        raise ConfigError("speculative-config: the draft_model method requires a model")
    origin = f"speculative-config: model {model}"
    shape = cost_shape(find_config(model), origin)
    return replace(drafter, shape=shape, storage=read_storage(shape.quantization_config, origin))


def _eagle3_shape(speculation: Speculation, shape: CostShape, model: str) -> CostShape:
    """Returns one dense layer beside the model, and the output of fewer tokens.

    The drafter's own file decides if its path is given.
    """
    inner_width = shape.intermediate_size
    if shape.num_experts:
        inner_width = SPARSE_WIDTH * shape.hidden_size
    lengths = find_lengths(speculation.method, model)
    vocabulary = DRAFT_VOCABULARY
    if lengths is not None and lengths.draft_vocabulary:
        vocabulary = lengths.draft_vocabulary
    fields: dict[str, object] = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": inner_width,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": min(vocabulary, shape.vocab_size),
    }
    origin = f"speculative-config: model {speculation.model}"
    if speculation.model and Path(speculation.model).exists():
        try:
            draft = text_fields(find_config(speculation.model))
        except UntrustedDataError as error:
            raise ConfigError(f"{origin}: {error}") from None
        columns = draft.get("draft_vocab_size") or draft.get("vocab_size") or shape.vocab_size
        fields = {name: draft[name] for name in DRAFT_FIELDS if name in draft}
        fields["vocab_size"] = columns
    layer: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": True,
    }
    return cost_shape(layer | fields, origin)

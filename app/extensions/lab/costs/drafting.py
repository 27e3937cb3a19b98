"""Cost and memory of drafts, and of steps that verify drafts (docs/planning.md).

A step with k drafts computes k + 1 tokens of each decode. Then the drafter proposes the next k: it
computes the tokens of the step first, and then one token of each sequence in each further pass.
"""

import math
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.batch import Batch
from app.core.engine.profile import CostConstants, Points
from app.core.engine.step_cost import StepCost
from app.extensions.lab.costs.devices import Device
from app.extensions.lab.costs.engine_options import BF16_BYTES
from app.extensions.lab.costs.kernel_sum import SEQUENCES, TOKENS
from app.extensions.lab.costs.known_models import read_model_config
from app.extensions.lab.costs.shapes import ModelShape, Size, model_shape
from app.extensions.lab.costs.speculation import (
    MTP,
    NGRAM,
    PRICED_METHODS,
    Speculation,
    find_lengths,
)
from app.extensions.lab.costs.storage import StorageFormat, read_storage
from config.declaration import ConfigError

DRAFT_VOCABULARY = 32_000
"""Tokens that a drafter of EAGLE-3 usually knows."""
SPARSE_WIDTH = 6
"""Inner width of an EAGLE-3 layer beside a mixture, in widths of the model."""
VERIFIED_BYTES = 12
"""Bytes that the rejection sampler moves for each logit of a verified token."""
NGRAM_S = 20e-6
"""Time to look up the drafts of a sequence in its text, on the CPU."""
FIXED_PRODUCTS = ("weights", "expert_weights", "expert_share", "per_token", "p", "tile", "spill")
"""Constants of the products that a table of products replaces."""


class DraftOverhead(Struct, frozen=True):
    """Times that vLLM adds to the kernels of drafts."""

    step_s: float
    """Sampling of verified tokens, and preparation of the drafter."""
    pass_s: float
    """Metadata and launch of a pass of the drafter."""


OVERHEAD = DraftOverhead(step_s=0.3e-3, pass_s=0.2e-3)


class Drafter(Struct, frozen=True, kw_only=True):
    """A drafter beside a model."""

    speculation: Speculation
    shape: ModelShape | None
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


class _DraftFile(Struct):
    """Fields of the `config.json` of an EAGLE-3 drafter, which may lack others."""

    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    num_hidden_layers: Size = 1
    head_dim: int = 0
    draft_vocab_size: int = 0
    vocab_size: int = 0


def make_drafter(
    speculation: Speculation, shape: ModelShape, storage: StorageFormat, model: str
) -> Drafter:
    """Returns the drafter of a speculation; `model` is the name of the model with `shape`.

    Raises:
        ConfigError: The cost of the method is unknown, or its model is.
    """
    method = speculation.method
    if method not in PRICED_METHODS:
        raise ConfigError(
            f"speculative-config: method {method}: the cost of its drafts is not known; known are"
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


def _one_layer(shape: ModelShape) -> ModelShape:
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
        raise ConfigError("speculative-config: method draft_model requires a model")
    origin = f"speculative-config: model {model}"
    shape = model_shape(read_model_config(model), origin)
    return replace(drafter, shape=shape, storage=read_storage(shape.quantization_config, origin))


def _eagle3_shape(speculation: Speculation, shape: ModelShape, model: str) -> ModelShape:
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
    draft = _DraftFile(
        hidden_size=shape.hidden_size,
        intermediate_size=inner_width,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        draft_vocab_size=min(vocabulary, shape.vocab_size),
    )
    if speculation.model and Path(speculation.model).exists():
        try:
            draft = msgspec.convert(read_model_config(speculation.model), _DraftFile)
        except msgspec.ValidationError as error:
            raise ConfigError(f"speculative-config: model {speculation.model}: {error}") from None
    return ModelShape(
        architectures=["LlamaForCausalLM"],
        hidden_size=draft.hidden_size,
        num_hidden_layers=draft.num_hidden_layers,
        num_attention_heads=draft.num_attention_heads,
        num_key_value_heads=draft.num_key_value_heads,
        head_dim=draft.head_dim,
        vocab_size=draft.draft_vocab_size or draft.vocab_size or shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
        intermediate_size=draft.intermediate_size,
        tie_word_embeddings=True,
    )


class Drafting(Struct, frozen=True, kw_only=True):
    """Costs of a drafter beside those of its model."""

    drafter: Drafter
    draft: CostConstants | None
    """A pass of the drafter, without overhead; None without a drafting model."""
    device: Device
    devices: int
    """Devices that share each layer."""

    def added_to(self, target: CostConstants) -> CostConstants:
        """Returns the costs of steps with drafts; `target` has the costs without."""
        count = self.drafter.speculation.draft_count
        fixed = CostConstants()
        changed = replace(
            target,
            **{name: getattr(fixed, name) for name in FIXED_PRODUCTS},
            base=target.base + OVERHEAD.step_s,
            products=self._products(target),
            products_scale=1.0,
            outputs=self._outputs(target),
            per_context=_overlapped(target.per_context, (count + 1) * target.per_attention),
        )
        draft = self.draft
        if draft is None:
            return replace(changed, per_sequence=target.per_sequence + NGRAM_S)
        return replace(
            changed,
            base=changed.base + OVERHEAD.pass_s + draft.base + draft.decodes,
            per_context=changed.per_context + self.drafter.passes * draft.per_context,
            prefills=target.prefills + draft.prefills,
            per_attention=target.per_attention + draft.per_attention,
        )

    def _products(self, target: CostConstants) -> Points:
        """Returns the seconds of the model's products, and of the drafter's first pass."""
        models = [StepCost(_only_products(target))]
        if self.draft is not None:
            models.append(StepCost(_only_products(self.draft)))
        points = []
        for tokens in TOKENS:
            step: Batch[Any] = Batch(tokens=tokens)
            seconds = sum(model.seconds(step, 0.0, idle=False) for model in models)
            points.append((tokens, seconds + self._inputs_s(tokens, is_first=True)))
        return tuple(points)

    def _outputs(self, target: CostConstants) -> Points:
        """Returns the seconds that depend on the sequences of a step.

        These are the outputs of all verified tokens, and the drafter's further passes and outputs.
        """
        model = StepCost(CostConstants(outputs=target.outputs))
        count = self.drafter.speculation.draft_count
        columns = self.drafter.verified_columns / self.devices
        logit_s = VERIFIED_BYTES * columns / self.device.bandwidth
        points = []
        for sequences in SEQUENCES:
            rows = sequences * (count + 1)
            seconds = model.seconds(_decodes(rows), 0.0, idle=False) + logit_s * rows
            points.append((sequences, seconds + self._drafts_s(sequences)))
        return tuple(points)

    def _drafts_s(self, sequences: int) -> float:
        """Returns the seconds of the drafter's output after the first pass, and of its others."""
        draft = self.draft
        if draft is None:
            return 0.0
        drafter = self.drafter
        rows = sequences * drafter.rows
        output = StepCost(CostConstants(outputs=draft.outputs))
        seconds = output.seconds(_decodes(rows), 0.0, idle=False) + draft.per_decode * sequences
        if drafter.passes == 1:
            return seconds
        model = StepCost(replace(draft, per_context=0.0))
        pass_s = OVERHEAD.pass_s + model.seconds(_decodes(rows), 0.0, idle=False)
        pass_s += self._inputs_s(rows, is_first=False)
        return seconds + (drafter.passes - 1) * pass_s

    def _inputs_s(self, rows: int, *, is_first: bool) -> float:
        """Returns the seconds of the products that a plain layer does not have."""
        weights = self.drafter.input_weights(is_first=is_first) / self.devices
        reading = BF16_BYTES * weights / self.device.bandwidth
        computing = 2 * rows * weights / self.device.flops
        return _overlapped(reading, computing)


def _decodes(sequences: int) -> Batch[Any]:
    """Returns a step of one token of each sequence, without context."""
    return Batch(tokens=sequences, sequences=sequences)


def _only_products(constants: CostConstants) -> CostConstants:
    names = ("products", "products_scale", *FIXED_PRODUCTS)
    return CostConstants(**{name: getattr(constants, name) for name in names})


def _overlapped(reading: float, computing: float) -> float:
    """Returns the seconds of reading and computing, which overlap in part."""
    return math.hypot(reading, computing)

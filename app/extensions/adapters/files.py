"""Checks of the files of an adapter that is loaded at run time, by vLLM's rules."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from app.core.engine.lora import AdapterNotFoundError, AdapterUnusableError
from app.extensions.adapters.config_file import read_config
from config.settings import LoraSettings
from config.untrusted import decode_untrusted

POSSIBLE_MODULES = ("classifier", "score")
"""Modules that a classifier's adapter may save whole."""
POSSIBLE_INITS = frozenset(("gaussian", "eva", "orthogonal", "mica", "lora_ga"))
"""Values of `init_lora_weights` that leave the weights of the base model as they are."""
FEATURES = {
    "use_dora": "DoRA",
    "lora_bias": "LoRA bias (lora_bias)",
    "alora_invocation_tokens": "Activated LoRA (aLoRA)",
    "layer_replication": "layer_replication",
    "use_bdlora": "block-diagonal LoRA (BD-LoRA)",
    "use_qalora": "QALoRA",
}
"""Fields of features that vLLM does not support, and the names of these features."""


class AdapterConfig(Struct, kw_only=True):
    """The fields of PEFT's ``adapter_config.json`` that vLLM reads.

    vLLM checks few types: a value of any type that is false turns a feature off.
    """

    r: float
    lora_alpha: float
    target_modules: object
    bias: object = "none"
    modules_to_save: object = None
    init_lora_weights: object = True
    rank_pattern: object = None
    use_dora: object = False
    lora_bias: object = False
    alora_invocation_tokens: object = None
    layer_replication: object = None
    use_bdlora: object = None
    use_qalora: object = False

    def problems(self, max_rank: int) -> Iterator[str]:
        """Yields a sentence for each reason why vLLM cannot serve the adapter.

        Raises:
            msgspec.ValidationError: A value has a type with which vLLM fails.
        """
        unsupported_modules = [
            name
            for name in msgspec.convert(self.modules_to_save or [], list[object] | str)
            if name not in POSSIBLE_MODULES
        ]
        if unsupported_modules:
            yield f"Unsupported modules_to_save: {unsupported_modules}."
        for field, feature in FEATURES.items():
            if getattr(self, field):
                yield f"vLLM does not yet support {feature}."
        init = self.init_lora_weights
        if isinstance(init, str) and init.lower() not in POSSIBLE_INITS:
            yield f"vLLM does not support init_lora_weights={init!r}."
        rank_pattern = msgspec.convert(self.rank_pattern or {}, dict[str, int])
        ranks = [self.r, *rank_pattern.values()]
        if min(ranks) <= 0:
            yield f"A LoRA rank must be a positive integer, got {min(ranks):g}."
        if max(ranks) > max_rank:
            yield f"LoRA rank {max(ranks):g} is greater than max_lora_rank {max_rank}."
        if self.bias != "none":
            yield "Adapter bias is not supported."


def check_adapter_files(name: str, path: str, lora: LoraSettings) -> None:
    """Checks an adapter that a client loads. Without files it passes, unless they are required.

    Raises:
        AdapterError: vLLM could not load the adapter.
    """
    try:
        text = read_config(path)
    except (OSError, ValueError):
        if lora.require_lora_files:
            raise AdapterNotFoundError(
                f"Loading lora {name} failed: No adapter found for {path}"
            ) from None
        return
    try:
        config = decode_untrusted(text, type=AdapterConfig)
        problems = " ".join(config.problems(lora.max_lora_rank))
    except ValueError as error:
        raise AdapterUnusableError(
            f"The LoRA adapter {name} could not be loaded: {error}"
        ) from None
    if problems:
        raise AdapterUnusableError(f"The LoRA adapter {name} could not be loaded: {problems}")

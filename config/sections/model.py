"""The model that is played."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.rules import at_least, between, no_empty_items, not_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model that is played."""

    model: str = setting("understudy-tiny", help="Name of the base model.", rule=not_empty())
    served_model_name: tuple[str, ...] = setting(
        (),
        help="Names that requests may use, the first is shown in replies; the model's own name when empty.",
        rule=no_empty_items(),
    )
    max_model_len: int = setting(
        4096, unit="tokens", help="Length of the context: prompt and completion together.", rule=at_least(1)
    )
    task: Literal["generate", "embed", "pooling", "score", "classify"] = setting(
        "generate",
        help="What the model is for. Other tasks than generate serve pooling routes instead of chat and "
        "completions: embed has embeddings, score and rerank, score has classify, score and rerank, classify "
        "has classify, each of them has pooling, and pooling has them all.",
    )
    default_embedding_dimensions: int = setting(
        384, help="Length of a vector whose request does not say.", rule=between(1, 65536)
    )
    mm_encoder_only: bool = setting(
        False, help="Play the encoder of a disaggregated multimodal model: replies are exclamation marks."
    )
    omni: bool = setting(False, help="Play a model that can answer with images.")
    image_emission_rate: int = setting(
        0, unit="%", live=True, help="Chance of an image in a reply of an omni model.", rule=between(0, 100)
    )
    vllm_version: str = setting("0.32.0", help="What GET /version answers.", rule=not_empty())

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that requests may use, never empty; the first is the one in replies."""
        return self.served_model_name or (self.model,)

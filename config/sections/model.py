"""Settings of the model, its adapters and its tokenizer."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import (
    About,
    Count,
    NonEmpty,
    NonEmptyItems,
    Objects,
    Percent,
    PositiveDuration,
    Section,
)

ANY = "*"
"""Item of served-model-name that stands for every name."""
OWN_LENGTH = 2**31 - 1
"""Provisional max-model-len, in tokens, until a real engine reports its model's context length."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """The model that is played."""

    model: NonEmpty = "understudy-tiny"
    """Name of the base model."""
    served_model_name: NonEmptyItems = ()
    """Names that requests may use, the first is shown in replies; the model's own name when empty.
    With * a request may use any name, which its reply shows."""
    max_model_len: Annotated[Count, About(unit="tokens", also=("max-seq-length",))] = 32_768
    """Length of the context: prompt and completion together. With engine llm the model's own when
    it is not given."""
    task: Literal["generate", "embed", "pooling", "score", "classify"] = "generate"
    """Purpose of the model. Other tasks than generate serve pooling routes instead of chat and
    completions: embed has embeddings, score and rerank, score has classify, score and rerank,
    classify has classify, each has pooling, and pooling has all."""
    embeddings_with_chat: bool = False
    """Serve /v1/embeddings beside chat and completions, as llm-d-inference-sim does (task
    generate).
    """
    multimodal: bool | None = None
    """Take images, sound and video in messages; without it they get 400. When it is not given, the
    config.json of the model decides, where there is one, and else they are taken."""
    default_embedding_dimensions: Annotated[int, Meta(ge=1, le=65536)] = 384
    """Length of a vector whose request names none."""
    mm_encoder_only: bool = False
    """Play the encoder of a disaggregated multimodal model: replies are exclamation marks."""
    omni: bool = False
    """Play a model that can answer with images."""
    image_emission_rate: Annotated[Percent, About(unit="%", live=True)] = 0
    """Chance of an image in a reply of an omni model."""
    tensor_parallel_size: Annotated[Count, About(unit="devices")] = 1
    """Devices that the model is split over, named in kv_transfer_params; one process plays them
    all.
    """

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names of the model in requests: never empty, without *; replies have the first name."""
        return tuple(name for name in self.served_model_name if name != ANY) or (self.model,)

    @property
    def takes_any_name(self) -> bool:
        """True if a request may use any name for the model."""
        return ANY in self.served_model_name


class LoraSettings(Section, frozen=True, kw_only=True):
    """Adapters that are served beside the base model."""

    lora_modules: Objects = ()
    """Adapters from the start, each as name=path or as a JSON object with name, path and
    base_model_name.
    """
    max_loras: Annotated[Count, About(unit="adapters")] = 1
    """Adapters that may run at the same time."""
    max_cpu_loras: Annotated[Count | None, About(unit="adapters")] = None
    """Adapters with copies in CPU memory, the latest used ones; at least max-loras, and as many
    when empty. An adapter without a copy is loaded again when a request wants it."""
    max_lora_rank: Count = 16
    """Rank of an adapter whose path has no adapter_config.json with a rank."""
    lora_residency_metrics: bool = False
    """Report in the metrics which adapters are in GPU and CPU memory, as a vLLM after 0.32 does."""
    enable_lora: bool = False
    """Report adapters in the metrics even when none is there at the start."""
    allow_runtime_lora_updating: Annotated[
        bool, About(env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",))
    ] = False
    """Serve the routes that load and unload adapters."""


class TokenizerSettings(Section, frozen=True, kw_only=True):
    """How text becomes tokens."""

    tokenizer: Annotated[str | None, About(path=True)] = None
    """Folder, tokenizer.json file or Hugging Face name; the embedded tokenizer when empty."""
    render_url: str | None = None
    """Base URL of a vLLM render service that tokenizes instead of this process."""
    render_timeout: PositiveDuration = 30.0
    """Longest wait for an answer of the render service."""
    mm_render_timeout: PositiveDuration = 60.0
    """The same for messages with images, which the service has to fetch."""
    force_dummy_tokenizer: bool = False
    """Use the embedded tokenizer even when the model's own could be found."""
    tokenizers_cache_dir: Annotated[str | None, About(path=True)] = None
    """Folder for tokenizers fetched from the Hugging Face hub; the hub's own cache when empty."""
    hf_token: Annotated[str | None, About(env=("HF_TOKEN",), secret=True)] = None
    """Access token for the Hugging Face hub."""
    chat_template: Annotated[str | None, About(path=True)] = None
    """Jinja chat template, as a file or as its text; the tokenizer's own when empty."""

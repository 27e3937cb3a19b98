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

OWN_LENGTH = 2**31 - 1
"""Provisional max-model-len, in tokens, until a real engine reports its model's context length."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """The model that is played."""

    model: Annotated[NonEmpty, About("Name of the base model.")] = "understudy-tiny"
    served_model_name: Annotated[
        NonEmptyItems,
        About("Names that requests may use, the first is shown in replies; the model's own name when empty."),
    ] = ()
    max_model_len: Annotated[
        Count,
        About(
            "Length of the context: prompt and completion together. With engine llm the model's own when it "
            "is not given.",
            unit="tokens",
            also=("max-seq-length",),
        ),
    ] = 32_768
    task: Annotated[
        Literal["generate", "embed", "pooling", "score", "classify"],
        About(
            "What the model is for. Other tasks than generate serve pooling routes instead of chat and "
            "completions: embed has embeddings, score and rerank, score has classify, score and rerank, "
            "classify has classify, each of them has pooling, and pooling has them all."
        ),
    ] = "generate"
    embeddings_with_chat: Annotated[
        bool,
        About(
            "Serve /v1/embeddings beside chat and completions, as llm-d-inference-sim does (task generate)."
        ),
    ] = False
    multimodal: Annotated[
        bool | None,
        About(
            "Take images, sound and video in messages; without it they get 400. When it is not given, the "
            "config.json of the model tells, where there is one, and else they are taken."
        ),
    ] = None
    default_embedding_dimensions: Annotated[
        int, Meta(ge=1, le=65536), About("Length of a vector whose request does not say.")
    ] = 384
    mm_encoder_only: Annotated[
        bool, About("Play the encoder of a disaggregated multimodal model: replies are exclamation marks.")
    ] = False
    omni: Annotated[bool, About("Play a model that can answer with images.")] = False
    image_emission_rate: Annotated[
        Percent, About("Chance of an image in a reply of an omni model.", unit="%", live=True)
    ] = 0
    tensor_parallel_size: Annotated[
        Count,
        About(
            "Devices that the model is split over, told in kv_transfer_params; one process plays them all.",
            unit="devices",
        ),
    ] = 1
    vllm_version: Annotated[NonEmpty, About("What GET /version answers.")] = "0.32.0"

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names for the model in requests, never empty; replies have the first name."""
        return self.served_model_name or (self.model,)


class LoraSettings(Section, frozen=True, kw_only=True):
    """Adapters that are served beside the base model."""

    lora_modules: Annotated[
        Objects,
        About(
            "Adapters from the start, each as name=path or as a JSON object with name, path and "
            "base_model_name."
        ),
    ] = ()
    max_loras: Annotated[Count, About("Adapters that may run at the same time.", unit="adapters")] = 1
    max_cpu_loras: Annotated[
        Count | None,
        About(
            "Adapters of which copies stay in CPU memory, the latest used ones; at least max-loras, and as "
            "many when empty. What has none is loaded again when a request wants it.",
            unit="adapters",
        ),
    ] = None
    max_lora_rank: Annotated[
        Count, About("Rank of an adapter whose path has no adapter_config.json that tells it.")
    ] = 16
    lora_residency_metrics: Annotated[
        bool,
        About("Report in the metrics which adapters are in GPU and CPU memory, as a vLLM after 0.32 does."),
    ] = False
    enable_lora: Annotated[
        bool, About("Tell of adapters in the metrics even when none is there at the start.")
    ] = False
    allow_runtime_lora_updating: Annotated[
        bool,
        About("Serve the routes that load and unload adapters.", env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",)),
    ] = False


class TokenizerSettings(Section, frozen=True, kw_only=True):
    """How text becomes tokens."""

    tokenizer: Annotated[
        str | None,
        About(
            "Folder, tokenizer.json file or Hugging Face name; the embedded tokenizer when empty.", path=True
        ),
    ] = None
    render_url: Annotated[
        str | None, About("Base URL of a vLLM render service that tokenizes instead of this process.")
    ] = None
    render_timeout: Annotated[
        PositiveDuration, About("Longest wait for an answer of the render service.")
    ] = 30.0
    mm_render_timeout: Annotated[
        PositiveDuration, About("The same for messages with images, which the service has to fetch.")
    ] = 60.0
    force_dummy_tokenizer: Annotated[
        bool, About("Use the embedded tokenizer even when the model's own could be found.")
    ] = False
    tokenizers_cache_dir: Annotated[
        str | None,
        About(
            "Folder for tokenizers fetched from the Hugging Face hub; the hub's own cache when empty.",
            path=True,
        ),
    ] = None
    hf_token: Annotated[
        str | None, About("Access token for the Hugging Face hub.", env=("HF_TOKEN",), secret=True)
    ] = None
    chat_template: Annotated[
        str | None,
        About("Jinja chat template, as a file or as its text; the tokenizer's own when empty.", path=True),
    ] = None

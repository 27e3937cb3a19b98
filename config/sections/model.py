"""Settings of the model, its adapters and its tokenizer."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import (
    SIMULATED,
    About,
    Count,
    NonEmpty,
    NonEmptyItems,
    Objects,
    Percent,
    Section,
)

ANY = "*"
"""Item of served-model-name that stands for every name."""
OWN_LENGTH = 2**31 - 1
"""Provisional max-model-len, in tokens, until a real engine reports its model's context length."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """The simulated model."""

    model: NonEmpty = "understudy-tiny"
    """Name of the base model."""
    served_model_name: NonEmptyItems = ()
    """Model names that requests can use. Replies contain the first name in this list. If this
    setting is empty, the value of the model setting is used. If the list contains *, requests can
    use any name, and each reply contains the name in its request."""
    max_model_len: Annotated[Count, About(unit="tokens", also=("max-seq-length",))] = 32_768
    """Context length, which includes the prompt and the completion. If this setting is empty, the
    llm engine uses the model's context length."""
    task: Annotated[
        Literal[
            "generate",
            "embed",
            "pooling",
            "score",
            "classify",
            "token_embed",
            "token_classify",
            "plugin",
            "transcription",
        ],
        SIMULATED,
    ] = "generate"
    """Task that the model performs. For the transcription task, the server has the routes of
    /v1/audio instead of the chat and completion routes. For the other tasks, it has
    pooling routes instead. For the embed task, the server provides the
    embeddings, score, rerank, and pooling routes. For the score task, the server provides the
    classify, score, rerank, and pooling routes. For the classify task, the server provides the
    classify and pooling routes. For the token_embed task of late-interaction models, such as
    ColBERT, the server provides the score, rerank, and pooling routes. For the token_classify and
    plugin tasks, it provides the pooling route. For the pooling task, the server provides all
    pooling routes."""
    pooling_task: Annotated[
        Literal["embed", "classify", "token_embed", "token_classify"] | None, SIMULATED
    ] = None
    """Task that /pooling performs. This setting corresponds to the task field of vLLM's
    pooler-config. An embedding model supports the embed and token_embed tasks. A classifier
    supports the classify and token_classify tasks. If this setting is empty, the task setting
    determines whether embed or classify is used. If the task setting is pooling, each request can
    use any pooling task."""
    class_labels: Annotated[NonEmptyItems, Meta(min_length=1), SIMULATED] = ("LABEL_0", "LABEL_1")
    """Names of the classes of the classify and pooling tasks. With the serve command, the default
    is the id2label or num_labels field of the model's config.json."""
    embeddings_with_chat: Annotated[bool, SIMULATED] = False
    """For the generate task, serve /v1/embeddings along with the chat and completion routes, as
    llm-d-inference-sim does."""
    multimodal: bool | None = None
    """Accept images, audio, and video in messages. If this setting is false, requests that contain
    images, audio, or video are rejected with status 400. If this setting is empty, the model's
    config.json determines whether media are accepted. If config.json does not exist, media are
    accepted."""
    default_embedding_dimensions: Annotated[int, Meta(ge=1, le=65536)] = 384
    """Number of dimensions in an embedding if the request does not specify dimensions."""
    mm_encoder_only: Annotated[bool, SIMULATED] = False
    """Simulate the encoder of a disaggregated multimodal model. Replies consist of exclamation
    marks."""
    omni: Annotated[bool, SIMULATED] = False
    """Simulate a model that can reply with images."""
    image_emission_rate: Annotated[Percent, About(simulated=True, unit="%", live=True)] = 0
    """Probability that a reply from an omni model includes an image."""
    tensor_parallel_size: Annotated[Count, About(unit="devices")] = 1
    """Number of devices that the model uses, as reported in kv_transfer_params. One process
    simulates all of these devices."""

    @property
    def generates(self) -> bool:
        """True if the model generates text, at least from speech."""
        return self.task in ("generate", "transcription")

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names of the model in requests: never empty, without *; replies have the first name."""
        return tuple(name for name in self.served_model_name if name != ANY) or (self.model,)

    @property
    def takes_any_name(self) -> bool:
        """True if a request may use any name for the model."""
        return ANY in self.served_model_name


class LoraSettings(Section, frozen=True, kw_only=True):
    """LoRA adapters of the base model."""

    lora_modules: Annotated[Objects, SIMULATED] = ()
    """Adapters to load at startup, each specified as name=path or as a JSON object with name, path,
    and base_model_name."""
    max_loras: Annotated[Count, About(simulated=True, unit="adapters")] = 1
    """Maximum number of adapters that run at the same time."""
    prefer_resident_adapters: Annotated[bool, SIMULATED] = True
    """If timing is set to requests, start requests whose adapter is in memory before requests whose
    adapter must be loaded, as in llm-d-inference-sim. If this setting is false, requests start in
    order of arrival, as in vLLM."""
    max_cpu_loras: Annotated[Count | None, About(simulated=True, unit="adapters")] = None
    """Maximum number of adapters in CPU memory. The value must be at least max-loras, which is the
    default. The most recently used adapters are kept, and others are reloaded when a request needs
    them."""
    max_lora_rank: Annotated[Count, SIMULATED] = 16
    """Rank that is assumed for adapters without an adapter_config.json that specifies a rank."""
    require_lora_files: Annotated[bool, SIMULATED] = False
    """Return status 404, as vLLM does, for adapters that are loaded at run time from a path without
    adapter_config.json. If adapter_config.json exists, it is always checked, regardless of this
    setting."""
    enable_lora: Annotated[bool, SIMULATED] = False
    """Report adapters in the metrics even if none are loaded at startup."""
    allow_runtime_lora_updating: Annotated[
        bool, About(simulated=True, env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",))
    ] = False
    """Serve the routes that load and unload adapters."""


class TokenizerSettings(Section, frozen=True, kw_only=True):
    """Tokenizer and chat template."""

    tokenizer: str | None = None
    """Folder, tokenizer.json file, .gguf file, or name of a model on the Hugging Face Hub. If this
    setting is empty, the model's tokenizer is used. If the model's tokenizer is not available, the
    embedded tokenizer is used."""
    force_dummy_tokenizer: Annotated[bool, SIMULATED] = False
    """Use the embedded tokenizer even if the model's tokenizer is available."""
    tokenizers_cache_dir: str | None = None
    """Folder for tokenizers from the Hugging Face Hub. If this setting is empty, the default cache
    of the Hugging Face Hub is used."""
    hf_token: Annotated[str | None, About(env=("HF_TOKEN",), secret=True)] = None
    """Access token for the Hugging Face Hub."""
    chat_template: str | None = None
    """Jinja chat template, as a file or as text. If this setting is empty, the tokenizer's template
    is used."""

"""vLLM's `speculative_config`: prompt lookup of a real engine, and drafts of a simulated one.

A simulated engine follows synthetic acceptance: with `rejection_sample_method: synthetic` vLLM
accepts drafts by chance, without comparing probabilities. Other configurations have no effect on
it; their names and types are checked.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from config.declaration import Count, suggestion
from config.flag_words import WrongValueError
from config.sections.engine import EngineSettings
from config.settings import Settings
from config.untrusted import decode_untrusted
from vllm_facts.version import played_versions

FILE = Path(__file__).with_name("speculative.json")
"""Changes of the speculative configuration between versions of vLLM that no declaration shows."""
NGRAM_LENGTH = 5
"""vLLM's default length of the n-gram, in tokens."""

OTHER_FIELDS = frozenset(
    (
        "attention_backend",
        "code_revision",
        "disable_eagle_block_drop",
        "disable_padded_drafter_batch",
        "draft_load_config",
        "draft_model_config",
        "draft_parallel_config",
        "draft_sample_method",
        "draft_tensor_parallel_size",
        "dspark_draft_topk",
        "enable_adaptive_verification",
        "enforce_eager",
        "index_share_for_mtp_iteration",
        "kv_cache_dtype",
        "max_model_len",
        "moe_backend",
        "num_speculative_tokens_per_batch_size",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "quantization",
        "revision",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
        "target_model_config",
        "target_parallel_config",
        "use_heterogeneous_vocab",
        "use_local_argmax_reduction",
    )
)
"""Fields of all supported versions of vLLM that are accepted unchecked."""
PARALLEL_METHODS = ("dflash", "dspark")
"""Methods that always draft in parallel."""
METHODS_WITH_MODEL = (
    "custom_class",
    "dflash",
    "draft_model",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
)
METHODS_WITHOUT_CACHE = (
    "custom_class",
    "extract_hidden_states",
    "medusa",
    "mlp_speculator",
    "ngram",
    "ngram_gpu",
    "suffix",
)
"""Methods whose drafters write no KV cache."""
MAX_DRAFTS = 1024
"""Maximum number of drafts in a step; each has a counter in the metrics."""


class Changes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of later versions of vLLM: name -> first version with the change."""

    later_rejection_methods: dict[str, str]
    own_passes: dict[str, str]
    """Methods that draft in a pass of their own, without draft slots."""


CHANGES = msgspec.json.decode(FILE.read_bytes(), type=Changes)


class SyntheticDrafts(NamedTuple):
    """Drafts of a simulated engine with synthetic acceptance."""

    acceptance: tuple[float, ...]
    """Chance that a draft is accepted after accepted ones, by position."""
    slots: int
    """Tokens of a step that each sequence takes for its drafts, besides its own."""
    lookahead: int
    """Tokens for which each sequence holds blocks besides its own."""


class DraftConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of vLLM's `speculative_config` that are checked."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=MAX_DRAFTS)] | None = None
    rejection_sample_method: Literal["standard", "synthetic", "block", "fly"] = "standard"
    synthetic_acceptance_rates: list[float] | None = None
    synthetic_acceptance_length: float | None = None
    parallel_drafting: bool = False
    suffix_decoding_max_tree_depth: Annotated[int, Meta(ge=1, le=MAX_DRAFTS)] = 24
    tensor_parallel_size: None = None

    def __post_init__(self) -> None:
        """Checks the fields of synthetic acceptance, as vLLM does."""
        lists_rates = self.synthetic_acceptance_rates is not None
        has_length = self.synthetic_acceptance_length is not None
        if self.rejection_sample_method != "synthetic":
            if lists_rates or has_length:
                raise ValueError(
                    "synthetic_acceptance_rates and synthetic_acceptance_length are only valid"
                    " with rejection_sample_method='synthetic'"
                )
            return
        if self._lacks_model():
            raise ValueError("num_speculative_tokens was provided but without speculative model")
        if lists_rates == has_length:
            raise ValueError(
                "rejection_sample_method='synthetic' requires exactly one of"
                " synthetic_acceptance_rates or synthetic_acceptance_length"
            )

    def effective_method(self) -> str:
        """Returns the method, which vLLM finds by the model where it is not given."""
        if self.method is not None:
            return self.method
        if self.model == "ngram":
            return self.model
        return "draft_model"

    def _lacks_model(self) -> bool:
        if self.model is not None or self.num_speculative_tokens is None:
            return False
        return self.effective_method() in METHODS_WITH_MODEL

    def draft_count(self) -> int:
        """Returns the number of drafts of a sequence in a step.

        Raises:
            ValueError: Only a draft model would know the number.
        """
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        if self.method == "suffix":
            return self.suffix_decoding_max_tree_depth
        raise ValueError("num_speculative_tokens must be provided")

    def draft_slots(self, versions: Sequence[str]) -> int:
        """Returns the tokens of a step that each sequence takes for its drafts.

        Drafts in parallel take a token each: every draft with a draft model, and otherwise all but
        the first, which takes the place of the sequence's own token. `versions` are the supported
        ones up to the simulated version.

        Raises:
            ValueError: Only a draft model would know the number of drafts.
        """
        method = self.effective_method()
        if CHANGES.own_passes.get(method) in versions:
            return 0
        if method == "dflash":
            return self.draft_count()
        if self.parallel_drafting or method in PARALLEL_METHODS:
            own_tokens = 0 if method == "draft_model" else 1
            return self.draft_count() - own_tokens
        if method == "draft_model":
            return 1
        return 0

    def lookahead(self) -> int:
        """Returns the tokens for which each sequence holds blocks, because a drafter writes there.

        Raises:
            ValueError: Only a draft model would know the number of drafts.
        """
        method = self.effective_method()
        if method in METHODS_WITHOUT_CACHE:
            return 0
        bonus_tokens = 1 if method == "dflash" else 0
        return self.draft_count() + bonus_tokens

    def unconditional_rates(self) -> list[float]:
        """Returns the chance that a draft and all earlier ones are accepted, by position.

        Raises:
            ValueError: The rates or the length are out of range.
        """
        count = self.draft_count()
        rates = self.synthetic_acceptance_rates
        if rates is None:
            return rates_of_length(self.synthetic_acceptance_length or 0.0, count)
        if len(rates) != count:
            raise ValueError(f"synthetic_acceptance_rates must have length {count}, got {rates}")
        if not all(0.0 <= rate <= 1.0 for rate in rates):
            raise ValueError(f"synthetic_acceptance_rates entries must be in [0, 1], got {rates}")
        if sorted(rates, reverse=True) != rates:
            raise ValueError(f"synthetic_acceptance_rates must be non-increasing, got {rates}")
        return rates


class SpeculativeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `speculative_config` with method ngram.

    N-grams have `prompt_lookup_min` to `prompt_lookup_max` tokens.
    """

    method: Literal["ngram"]
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)]
    """Maximum number of drafts of a sequence in a step."""
    prompt_lookup_max: Count = 0
    """Default: `prompt_lookup_min`, and the other way round; 5 without both."""
    prompt_lookup_min: Count = 0

    def __post_init__(self) -> None:
        max_length = self.prompt_lookup_max
        min_length = self.prompt_lookup_min
        default = max_length or min_length or NGRAM_LENGTH
        msgspec.structs.force_setattr(self, "prompt_lookup_max", max_length or default)
        msgspec.structs.force_setattr(self, "prompt_lookup_min", min_length or default)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not be greater than prompt_lookup_max")


def prompt_lookup_of(engine: EngineSettings) -> SpeculativeConfig | None:
    """Returns the parsed `speculative_config` of a real engine.

    Raises:
        ValueError: It has another method, or a wrong field.
    """
    if engine.speculative_config is None:
        return None
    return decode_untrusted(engine.speculative_config, type=SpeculativeConfig)


def drafts_of(settings: Settings) -> SyntheticDrafts | None:
    """Returns the drafts of a simulated engine; None without synthetic acceptance.

    Raises:
        ValueError: vLLM would reject the `speculative_config`.
    """
    text = settings.engine.speculative_config
    if text is None:
        return None
    return synthetic_drafts(text, played_versions(settings.api))


def synthetic_drafts(text: str, versions: Sequence[str] | None = None) -> SyntheticDrafts | None:
    """Returns the drafts of a `speculative_config` as JSON; None without synthetic acceptance.

    `versions` are the supported versions of vLLM up to the simulated one. Without them, the names
    of all versions are valid.

    Raises:
        ValueError: vLLM would not start; the message completes "the value ...".
    """
    try:
        config = read_draft_config(text, versions)
        if config.rejection_sample_method != "synthetic":
            return None
        return SyntheticDrafts(
            acceptance=conditional_rates(config.unconditional_rates()),
            slots=config.draft_slots(versions or tuple(CHANGES.own_passes.values())),
            lookahead=config.lookahead(),
        )
    except ValueError as error:
        raise ValueError(f"is not a valid vLLM speculative_config: {error}") from None


def read_draft_config(text: str, versions: Sequence[str] | None = None) -> DraftConfig:
    """Returns the checked fields of a `speculative_config`; `text` is JSON.

    `versions` are as for `synthetic_drafts`.

    Raises:
        ValueError: A name, a type or a value is wrong.
    """
    from vllm_facts.option_names import later_fields  # few servers draft

    fields = decode_untrusted(text, type=dict[str, object] | None) or {}
    # vLLM accepts both spellings of a name; where both are given, the last one wins.
    named = {name.replace("-", "_"): value for name, value in fields.items()}
    unchecked_names = set(OTHER_FIELDS)
    for name, since in later_fields().items():
        if versions is None or since in versions:
            unchecked_names.add(name)
        elif name in named:
            raise ValueError(f"unknown field {name}; {_hint(since)}")
    known_names = (*DraftConfig.__struct_fields__, *unchecked_names)
    for name in named:
        if name not in known_names:
            advice = suggestion(name, known_names)
            raise WrongValueError(f"unknown field {name}", rule="known field", advice=advice)
    method = named.get("method")
    if isinstance(method, str):
        _check_method(method, versions)
    checked = {name: value for name, value in named.items() if name not in unchecked_names}
    config = msgspec.convert(checked, DraftConfig, strict=False)
    rejection = config.rejection_sample_method
    rejection_since = CHANGES.later_rejection_methods.get(rejection)
    if rejection_since is not None and versions and rejection_since not in versions:
        hint = _hint(rejection_since)
        raise ValueError(f"rejection_sample_method must not be '{rejection}'; {hint}")
    return config


def _hint(since: str) -> str:
    return f"vLLM {since} knows it (--vllm-version)"


def _check_method(method: str, versions: Sequence[str] | None) -> None:
    """Raises ValueError for a method that vLLM's option --spec-method does not have."""
    from vllm_facts.facts import OPTIONS  # few servers draft

    option = OPTIONS["spec-method"]
    if versions is None:
        if method in option.later:
            return
    else:
        option = option.as_of(versions)
    try:
        option.read(method)
    except ValueError as error:
        wrong = WrongValueError.of(error)
        raise WrongValueError(
            f"method {wrong.flaw}", advice=wrong.advice, brief=f"method {wrong.brief}"
        ) from None


def rates_of_length(length: float, count: int) -> list[float]:
    """Returns the rates with the mean `length` of accepted drafts and the next token.

    They have the least variance: the first drafts are always accepted, and one by chance.
    """
    if not 1.0 <= length <= count + 1:
        raise ValueError(f"synthetic_acceptance_length must be in [1, {count + 1}], got {length}")
    accepted = length - 1
    return [min(1.0, max(0.0, accepted - position)) for position in range(count)]


def conditional_rates(rates: list[float]) -> tuple[float, ...]:
    """Returns the chance of each draft after accepted ones; `rates` include the earlier ones."""
    conditional: list[float] = []
    previous = 1.0
    for rate in rates:
        conditional.append(rate / previous if previous > 0 else 0.0)
        previous = rate
    return tuple(conditional)

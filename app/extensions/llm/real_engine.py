"""Objects of a real engine (`engine: llm`) for the master and the workers.

Imports no torch: only the engine's own process needs it.
"""

import os
from pathlib import Path
from typing import Literal, cast

import msgspec

from app.core.api.sampling import RealModel, ThoughtTokens
from app.core.base.clock.clock import Clock
from app.core.base.metrics.recorder import Recorder
from app.core.engine.kvcache.publishing import PublisherSettings
from app.core.engine.sampling import SamplingDefaults
from app.core.engine.sleep import PauseRules
from app.core.engine.tool_replies import ToolReplies
from app.core.extensions import OtherEngine, ServerParts
from app.core.server.gunicorn.ranks import ENDPOINT
from app.core.text.base import Tokenizer
from app.core.text.files import template_source
from app.core.versions.chain import simulated_version
from app.extensions.llm.errors import LLMError
from app.extensions.llm.model_files import find_model, load_tokenizer
from app.extensions.llm.remote_engine import RemoteEngine
from app.extensions.llm.remote_lifecycle import RemoteLifecycle
from app.extensions.llm.settings import LlmSettings
from app.extensions.llm.text_readers import readers
from app.extensions.llm.wire import EngineProcessOptions
from config import ConfigError, Settings
from config.declaration import COMMAND, check_installed
from config.files import read_whole
from config.sections.model import OWN_LENGTH
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.reasoning_marks import marks_of
from vllm_facts.speculative import prompt_lookup_of

Device = Literal["auto", "cuda", "mps", "cpu"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
SHORT_DTYPES = {"float": "float32", "half": "float16"}
OWN_DEFAULTS = "auto"
"""Value of the setting generation-config: the model's own defaults."""
NO_DEFAULTS = "vllm"
"""Value of the setting generation-config: no defaults."""
NOT_STARTED = (
    "setting engine: 'llm' is started by gunicorn.conf.py of Understudy, "
    "which this gunicorn does not read: "
    f"start it in its folder, or with {COMMAND}"
)


def engine_options(settings: Settings, kv_events: PublisherSettings) -> EngineProcessOptions:
    """Returns the options of the engine's process.

    Raises:
        ConfigError: The engine cannot run on this machine.
    """
    check_installed("engine", "setting engine: 'llm'")
    sampling_defaults(settings)  # raises before any work is done
    section = settings.section(LlmSettings)
    cache = settings.kvcache
    limits = settings.scheduling
    model = settings.model.model
    if os.path.exists(model):
        model = os.path.abspath(model)
    max_model_len: int | None = settings.model.max_model_len
    if max_model_len == OWN_LENGTH:
        max_model_len = None
    # Each rank applies the limit to its latest count; the engine must accept what all ranks send at
    # once.
    max_queue_size = limits.max_num_seqs + limits.max_waiting_queue_length
    max_queue_size *= len(settings.server.ranks)
    return EngineProcessOptions(
        endpoint="",
        model=model,
        device=cast(Device, settings.steps.device or "auto"),  # checked by `LlmSettings`
        dtype=cast(Dtype, SHORT_DTYPES.get(section.dtype, section.dtype)),
        num_blocks=cache.kv_cache_size,
        block_size=cache.block_size,
        max_model_len=max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=settings.steps.max_num_batched_tokens,
        step_time_s=section.engine_step_time,
        num_threads=section.engine_threads or 0,
        max_queue_size=max_queue_size,
        enable_prefix_caching=cache.enable_kvcache,
        prefix_caching_hash_algo=cache.prefix_caching_hash_algo,
        hash_seed=cache.hash_seed,
        seed=settings.reply.seed,
        speculative_config=prompt_lookup_of(settings.engine),
        batch_invariant=section.batch_invariant,
        kv_events=kv_events if cache.enable_kvcache else None,
        log_level=settings.log.log_level.upper().replace("TRACE", "DEBUG"),
    )


def model_path(settings: Settings) -> Path:
    """Returns the path of the model.

    Raises:
        ConfigError: The model is not on this machine.
    """
    try:
        return find_model(settings.model.model)
    except LLMError as error:
        raise ConfigError(f"setting model: {error}") from None


def model_tokenizer(settings: Settings) -> Tokenizer:
    """Loads the tokenizer beside the weights, or from their file.

    Raises:
        ConfigError: The tokenizer is missing or invalid.
    """
    path = model_path(settings)
    template = template_source(settings.tokenizer.chat_template)
    try:
        tokenizer = load_tokenizer(path, chat_template=template)
    except LLMError as error:
        raise ConfigError(f"setting model: {error}") from None
    if tokenizer is None:
        raise ConfigError(
            f"setting model: {path} does not contain tokenizer.json; specify one with the "
            "tokenizer setting"
        )
    return tokenizer


def remote_parts(parts: ServerParts) -> tuple[RemoteEngine, OtherEngine]:
    """Returns the client of the engine process, alone and as the engine of a server.

    Raises:
        ConfigError: No engine was started.
    """
    settings = parts.settings
    engine = remote_engine(
        settings,
        parts.tokenizer,
        parts.recorder,
        clock=parts.clock,
        tool_replies=parts.tool_replies,
    )
    rules = simulated_version(settings.api).rules(PauseRules)
    lifecycle = RemoteLifecycle(engine, rules)
    model = real_model(settings, parts.tokenizer)
    return engine, OtherEngine(engine, lifecycle, real_model=model, event_source=engine)


def remote_engine(
    settings: Settings,
    tokenizer: Tokenizer,
    recorder: Recorder,
    clock: Clock,
    tool_replies: ToolReplies | None = None,
) -> RemoteEngine:
    """Builds the client of the engine that the arbiter has started.

    Raises:
        ConfigError: No engine was started.
    """
    endpoint = os.environ.get(ENDPOINT)
    if endpoint is None:
        raise ConfigError(NOT_STARTED)
    call_reader = None
    if tool_replies is not None:
        call_reader = tool_replies.reader(settings.tools.tool_call_parser)
    reader_of = readers(call_reader, marks_of(settings.reply.reasoning_parser, tokenizer.encode))
    return RemoteEngine(
        settings, endpoint, recorder, clock, names=tokenizer.token_texts, reader_of=reader_of
    )


def real_model(settings: Settings, tokenizer: Tokenizer) -> RealModel:
    """Returns the facts of the model that the API needs.

    Raises:
        ConfigError: The sampling defaults are unreadable or invalid.
    """
    opening, closing = marks_of(settings.reply.reasoning_parser, tokenizer.encode)
    begin_id = _token_of(opening, tokenizer)
    end_id = _token_of(closing, tokenizer)
    thoughts = None
    if begin_id is not None and end_id is not None:
        thoughts = ThoughtTokens(begin_id, end_id, tokenizer.decode)
    return RealModel(defaults=sampling_defaults(settings), thoughts=thoughts)


def _token_of(tag: str, tokenizer: Tokenizer) -> int | None:
    """Returns the id of a tag that is one token with visible text; None for other tags."""
    ids = tokenizer.encode(tag)
    if len(ids) != 1 or tokenizer.decode(ids) != tag:
        return None
    return ids[0]


def sampling_defaults(settings: Settings) -> SamplingDefaults:
    """Returns the defaults of the generation_config.json of the model or of another folder.

    Raises:
        ConfigError: The file is unreadable, or a value is invalid.
    """
    section = settings.section(LlmSettings)
    source = section.generation_config
    values: dict[str, object] = {}
    if source != NO_DEFAULTS:
        values = _read_generation_config(settings, source)
    values |= decode_untrusted(section.override_generation_config or "{}", decoder=python_json)
    defaults = {}
    for name in SamplingDefaults.__struct_fields__:
        if values.get(name) is not None:
            defaults[name] = values[name]
    try:
        return msgspec.convert(defaults, SamplingDefaults, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"setting generation-config: {source!r} cannot be used: {error}"
        ) from None


def _read_generation_config(settings: Settings, source: str) -> dict[str, object]:
    """Reads the file of the folder `source`; a missing file of the model has no values."""
    if source == OWN_DEFAULTS:
        folder = model_path(settings)
    else:
        folder = Path(source).expanduser()
    file = folder / "generation_config.json"
    try:
        return decode_untrusted(read_whole(file), type=dict[str, object])
    except (FileNotFoundError, NotADirectoryError):  # a .gguf file is not a folder
        if source == OWN_DEFAULTS:
            return {}
        raise ConfigError(f"setting generation-config: file not found: {file}") from None
    except (OSError, UntrustedDataError) as error:
        raise ConfigError(f"setting generation-config: {file} cannot be read: {error}") from None

"""Objects of a real engine (`engine: llm`) for the master and the workers.

Imports no torch: only the engine's own process needs it.
"""

import json
import os
from pathlib import Path
from typing import Literal, cast

import msgspec

from app.core.api.sampling import RealModel, SamplingDefaults, ThoughtTokens
from app.core.base.clock.clock import Clock
from app.core.base.metrics.recorder import Recorder
from app.core.engine.kvcache.events import PublisherSettings
from app.core.engine.parsing import THINK_BEGIN, THINK_END, readers
from app.core.engine.wire import EngineProcessOptions
from app.core.server.gunicorn.ranks import ENDPOINT
from app.core.text.base import Tokenizer
from app.core.text.huggingface import template_source
from app.extensions.llm.errors import LLMError
from app.extensions.llm.model_files import find_model, load_tokenizer
from app.extensions.llm.remote_engine import RemoteEngine
from config import ConfigError, Settings
from config.declaration import COMMAND, check_installed
from config.sections.model import OWN_LENGTH

Device = Literal["auto", "cuda", "mps", "cpu"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
SHORT_DTYPES = {"float": "float32", "half": "float16"}
OWN_DEFAULTS, NO_DEFAULTS = "auto", "vllm"
"""Values of the setting generation-config: the model's own defaults, or none."""
NOT_STARTED = (
    "setting engine: 'llm' is started by gunicorn.conf.py of Understudy, "
    "which this gunicorn does not read: "
    f"start it in its folder, or with {COMMAND}"
)


def engine_options(settings: Settings, kv_events: PublisherSettings) -> EngineProcessOptions:
    """Returns the options of the engine's process. ConfigError when it cannot run here."""
    check_installed("engine", "setting engine: 'llm'")
    sampling_defaults(settings)  # raises before any work is done
    cache, limits, name = settings.kvcache, settings.scheduling, settings.model.model
    length = settings.model.max_model_len
    return EngineProcessOptions(
        endpoint="",
        model=os.path.abspath(name) if os.path.exists(name) else name,
        device=cast(Device, settings.steps.device or "auto"),  # checked by `config.validation`
        dtype=cast(Dtype, SHORT_DTYPES.get(settings.engine.dtype, settings.engine.dtype)),
        num_blocks=cache.kv_cache_size,
        block_size=cache.block_size,
        max_model_len=None if length == OWN_LENGTH else length,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=settings.steps.max_num_batched_tokens,
        step_time_s=settings.engine.engine_step_time,
        num_threads=settings.engine.engine_threads or 0,
        # Each rank applies the limit to its latest count; the engine must accept what all ranks
        # send at once.
        max_queue_size=(limits.max_num_seqs + limits.max_waiting_queue_length)
        * len(settings.server.ranks),
        enable_prefix_caching=cache.enable_kvcache,
        prefix_caching_hash_algo=cache.prefix_caching_hash_algo,
        hash_seed=cache.hash_seed,
        seed=settings.reply.seed,
        speculative_config=settings.engine.speculation(),
        batch_invariant=settings.engine.batch_invariant,
        kv_events=kv_events if cache.enable_kvcache else None,
        log_level=settings.log.log_level.upper().replace("TRACE", "DEBUG"),
    )


def model_path(settings: Settings) -> Path:
    """Returns the path of the model. ConfigError when it is not on this machine."""
    try:
        return find_model(settings.model.model)
    except LLMError as error:
        raise ConfigError(f"setting model: {error}") from None


def model_tokenizer(settings: Settings) -> Tokenizer:
    """Loads the tokenizer beside the weights, or from their file. ConfigError without one."""
    path, template = model_path(settings), template_source(settings.tokenizer.chat_template)
    try:
        if (tokenizer := load_tokenizer(path, chat_template=template)) is not None:
            return tokenizer
    except LLMError as error:
        raise ConfigError(f"setting model: {error}") from None
    raise ConfigError(
        f"setting model: {path} has no tokenizer.json; name one with the setting tokenizer"
    )


def remote_engine(
    settings: Settings, tokenizer: Tokenizer, recorder: Recorder, clock: Clock
) -> RemoteEngine:
    """Builds the client of the engine that the arbiter has started. ConfigError without one."""
    endpoint = os.environ.get(ENDPOINT)
    if endpoint is None:
        raise ConfigError(NOT_STARTED)
    reader_of = readers(settings.tools.tool_call_parser)
    return RemoteEngine(
        settings, endpoint, recorder, clock, names=tokenizer.token_texts, reader_of=reader_of
    )


def real_model(settings: Settings, tokenizer: Tokenizer) -> RealModel:
    """Returns the facts of the model that the API needs.

    Raises the ConfigErrors of `sampling_defaults`.
    """
    tags = [THINK_BEGIN, THINK_END]
    ids = [tokenizer.encode(tag) for tag in tags]
    thoughts = None
    # The tags of thoughts are known if each is one token with visible text.
    if [len(of_tag) for of_tag in ids] == [1, 1] and [
        tokenizer.decode(of_tag) for of_tag in ids
    ] == tags:
        thoughts = ThoughtTokens(ids[0][0], ids[1][0], tokenizer.decode)
    return RealModel(defaults=sampling_defaults(settings), thoughts=thoughts)


def sampling_defaults(settings: Settings) -> SamplingDefaults:
    """Returns the defaults of the generation_config.json of the model or of another folder.

    Raises:
        ConfigError: The file is unreadable, or a value is invalid.
    """
    wanted, told = settings.engine.generation_config, dict[str, object]()
    if wanted != NO_DEFAULTS:
        folder = model_path(settings) if wanted == OWN_DEFAULTS else Path(wanted).expanduser()
        file = folder / "generation_config.json"
        try:
            told = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
        except (FileNotFoundError, NotADirectoryError):  # a .gguf file is no folder
            if wanted != OWN_DEFAULTS:
                raise ConfigError(f"setting generation-config: there is no {file}") from None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"setting generation-config: {file} cannot be read: {error}"
            ) from None
    told |= json.loads(settings.engine.override_generation_config or "{}")
    known = {
        name: told[name]
        for name in SamplingDefaults.__struct_fields__
        if told.get(name) is not None
    }
    try:
        return msgspec.convert(known, SamplingDefaults, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"setting generation-config: {wanted!r} cannot be used: {error}"
        ) from None

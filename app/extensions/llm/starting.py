"""Loads the model of the engine process."""

from __future__ import annotations

from functools import partial
from typing import Final

import zmq

from app.core.engine.kvcache.publisher import EventSender
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.heartbeat import Heartbeat
from app.extensions.llm.library import assemble
from app.extensions.llm.loader import open_model
from app.extensions.llm.model_files import find_model
from app.extensions.llm.serving import EngineService
from app.extensions.llm.wire import EngineProcessOptions, EngineSizes

FORM_CPU_SECONDS: Final = 1.0
"""Maximum CPU time to compile a structured output, as clients are not trusted."""


def start_service(options: EngineProcessOptions, socket: zmq.Socket[bytes]) -> EngineService:
    """Loads a model and returns its service.

    Raises:
        ModelLoadError: The model cannot be loaded, or the options do not fit it; with one line.
    """
    path = find_model(options.model)
    read = partial(
        open_model,
        path,
        options.device,
        dtype=options.dtype,
        batch_invariant=options.batch_invariant,
    )
    checkpoint = read()
    model_length = checkpoint.config.max_position
    length = options.max_model_len or model_length
    if length > model_length:
        raise ModelLoadError(
            f"max_model_len {length} exceeds the model's context length, {model_length}."
        )
    sizes = {name: getattr(options, name) for name in EngineSizes.__struct_fields__}
    engine_options = EngineOptions(
        **sizes,
        max_seq_length=min(length, options.num_blocks * options.block_size),
        kv_events=options.kv_events is not None,
        form_cpu_s=FORM_CPU_SECONDS,
    )
    events = None
    try:
        if options.kv_events is not None:
            events = EventSender(options.kv_events)
    except ValueError as error:
        raise ModelLoadError(f"KV events cannot be published: {error}.") from error
    engine = assemble(path, checkpoint, options.device, options.dtype, options=engine_options)
    return EngineService(
        engine,
        reload=read,
        socket=socket,
        events=events,
        heartbeat=Heartbeat(options.endpoint),
    )

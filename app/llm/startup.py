"""From options to an engine that serves."""

from __future__ import annotations

import os
import secrets
from typing import Final

import torch

from app.engine.heartbeat import Heartbeat
from app.engine.wire import EngineProcessOptions, Ready
from app.kvcache.event_sender import EventSender
from app.llm.engine import EngineOptions, LLMEngine
from app.llm.errors import ModelLoadError
from app.llm.lifecycle import Lifecycle
from app.llm.llm import assemble
from app.llm.loader import load_checkpoint
from app.llm.resolve import find_model
from app.llm.serving import EngineService
from app.llm.worker_sockets import WorkerSockets

FORM_CPU_S: Final = 1.0
"""In which each form has to be compiled: requests come from anyone."""


def start(options: EngineProcessOptions, sockets: WorkerSockets) -> EngineService:
    """ModelLoadError, with one line, for whatever is wrong with the model, and options that do not fit."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    path = find_model(options.model)
    checkpoint = load_checkpoint(path)
    sizes = engine_options(options, checkpoint.config.max_position)
    try:
        events = None if options.kv_events is None else EventSender(options.kv_events)
    except ValueError as error:
        raise ModelLoadError(f"The KV events cannot be published: {error}.") from error
    engine = assemble(path, checkpoint, options.device, options.dtype, sizes)
    lifecycle = Lifecycle(engine, lambda: load_checkpoint(path))
    return EngineService(engine, lifecycle, sockets, events, ready_of(engine), Heartbeat(options.endpoint))


def engine_options(options: EngineProcessOptions, model_len: int) -> EngineOptions:
    """ModelLoadError for a length that the model was not made for."""
    length = options.max_model_len or model_len
    if length > model_len:
        raise ModelLoadError(f"max_model_len is {length}, and the model was made for {model_len} tokens.")
    return EngineOptions(
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        max_seq_length=min(length, options.num_blocks * options.block_size),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        max_queue_size=options.max_queue_size,
        seed=options.seed,
        prefix_caching_hash_algo=options.prefix_caching_hash_algo,
        hash_seed=options.hash_seed,
        kv_events=options.kv_events is not None,
        int_hashes=options.int_hashes,
        form_cpu_s=FORM_CPU_S,
    )


def ready_of(engine: LLMEngine) -> Ready:
    return Ready(
        boot=secrets.token_hex(8),
        pid=os.getpid(),
        vocab_size=engine.runner.vocab_size,
        max_model_len=engine.max_tokens,
        num_blocks=engine.options.num_blocks,
        block_size=engine.options.block_size,
        dtype=str(engine.runner.device.info()["dtype"]),
        device=str(engine.runner.device.device),
        eos_token_ids=tuple(sorted(engine.eos_token_ids)),
    )

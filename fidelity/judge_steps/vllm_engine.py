"""vLLM's scheduler and KV cache as an `Engine` of the judge, without a model.

Runs in the oracle's environment: `python -m fidelity.judge_steps.vllm_engine` reads loads from
standard input, one per line, and writes their steps to standard output.
"""

import itertools
import json
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.load import (
    BLOCK_BYTES,
    FAILED,
    MAX_ADAPTER,
    OFFLOAD,
    STOP_TOKEN,
    Group,
    Load,
    Plan,
    Step,
    Steps,
)
from fidelity.judge_steps.vllm_offload import OffloadWorker, extra_config, order_transfers

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 65536,
    "torch_dtype": "float32",
}
"""Configuration of a model that is never loaded."""
RETENTION = "prefix_cache_retention_interval"
PAUSES = {
    "pause": PauseState.PAUSED_NEW,
    "keep": PauseState.PAUSED_ALL,
    "resume": PauseState.UNPAUSED,
}


class VllmEngine:
    """vLLM's scheduler, and the parts of its engine that call it."""

    def __init__(self, load: Load, model_folder: str) -> None:
        self.in_flight = 0
        self._load = load
        self._scheduler = make_scheduler(load, model_folder)
        self._scheduler.kv_event_publisher = self
        self._block_hasher: Any = None
        if load.caches_prefixes:
            hash_function = get_hash_fn_by_name(load.hash_algorithm)
            init_none_hash(hash_function)
            self._block_hasher = get_request_block_hasher(load.block_size, hash_function)
        self._adapters = {adapter: adapter for adapter in range(1, MAX_ADAPTER + 1)}
        """Number of each loaded adapter, as vLLM's front end counts them."""
        self._adapter_numbers = itertools.count(MAX_ADAPTER + 1)
        self._plans: dict[str, Plan] = {}
        self._outputs: deque[tuple[Any, dict[str, int]]] = deque()
        """Steps under way, each with the tokens of its requests before it."""
        self._next = Step()
        self._turn = 0
        """Number of steps that are over, with those without tokens."""
        self._transfers: dict[str, int] = {}
        """Requests that wait for a cache, each with the turn in which it arrives."""
        self._worker: OffloadWorker | None = None
        if load.connector == OFFLOAD:
            self._worker = OffloadWorker()
            order_transfers(self._scheduler.connector.connector_scheduler.manager)
        elif load.connector:
            self._scheduler.connector.plans = self._plans

    @property
    def unfinished(self) -> int:
        """Number of requests that are waiting or running."""
        return len(self._scheduler.requests)

    @property
    def fetching(self) -> bool:
        """True while a transfer is under way."""
        return bool(self._transfers) or (self._worker is not None and self._worker.is_busy)

    def add(self, plan: Plan) -> None:
        """Queues a request."""
        sampling = None
        pooling = None
        if self._load.is_pooling:
            pooling = PoolingParams(task="embed")
        else:
            sampling = SamplingParams(
                ignore_eos=True, max_tokens=plan.max_tokens, stop_token_ids=[STOP_TOKEN]
            )
            sampling.update_from_generation_config({}, STOP_TOKEN + 1)
        adapter = None
        if plan.adapter:
            number = self._adapters[plan.adapter]
            adapter = LoRARequest(f"a{plan.adapter}", number, f"/a{plan.adapter}")
        request = Request(
            request_id=plan.name,
            prompt_token_ids=plan.prompt,
            sampling_params=sampling,
            pooling_params=pooling,
            mm_features=_features(plan),
            block_hasher=self._block_hasher,
            lora_request=adapter,
            cache_salt=plan.salt,
            priority=plan.priority,
            arrival_time=float(plan.request),
        )
        self._plans[plan.name] = plan
        self._scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """Removes a request, unless it is over."""
        self._scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def command(self, name: str, adapter: int) -> None:
        """Runs a command of an operator. The scheduler has no part in those for adapters."""
        if name == "load":
            if adapter not in self._adapters:
                self._adapters[adapter] = next(self._adapter_numbers)
        elif name == "unload":
            self._adapters.pop(adapter, None)
        elif name in PAUSES:
            self._scheduler.set_pause_state(PAUSES[name])
        else:
            done = self._scheduler.reset_prefix_cache(name == "reset-running")
            self._next.events.append(["reset", done])

    def schedule(self) -> Step | None:
        """Makes a step; returns None if there is nothing to compute."""
        scheduler = self._scheduler
        output = scheduler.schedule()
        self._note(output)
        while not (output.total_num_scheduled_tokens or self.in_flight):
            if not output.preempted_req_ids:
                return None
            output = scheduler.schedule()
            self._note(output)
        if not output.total_num_scheduled_tokens:
            return None
        step = self._next
        self._next = Step()
        step.tokens = list(output.num_scheduled_tokens.items())
        starts = starts_of(output)
        admitted = {request.req_id for request in output.scheduled_new_reqs}
        step.admitted = [(name, starts[name]) for name, _ in step.tokens if name in admitted]
        step.preempted.sort()
        step.free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if self._load.groups:
            step.tables = [
                (name, [list(row) for row in scheduler.kv_cache_manager.get_block_ids(name)])
                for name, _ in step.tokens
            ]
        step.encoded = list(output.scheduled_encoder_inputs.items())
        self._outputs.append((output, starts))
        self.in_flight += 1
        return step

    def complete(self) -> None:
        """Ends the oldest step under way with the tokens of the plans."""
        output, starts = self._outputs.popleft()
        self.in_flight -= 1
        names = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        pooled: list[Any] = []
        for name, count in output.num_scheduled_tokens.items():
            request = self._scheduler.requests.get(name)
            is_complete = request is not None and starts[name] + count >= request.num_tokens
            tokens.append([])
            pooled.append(None)
            if is_complete and self._load.is_pooling:
                pooled[-1] = torch.zeros(1)
            elif is_complete:
                tokens[-1] = self._reply(name, request.num_output_tokens, output)
        self._turn += 1
        arrived = self._arrived()
        if self._worker is not None:
            self._worker.end_step(self._turn)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[] if self._load.is_pooling else tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=pooled if self._load.is_pooling else [],
            kv_connector_output=arrived,
        )
        self._update(output, result)
        if self._load.drafter and not self._load.is_asynchronous:
            self._propose(names)

    def wait(self) -> None:
        """Ends a step without tokens, in which only transfers go on."""
        self._turn += 1
        result = ModelRunnerOutput(
            req_ids=[], req_id_to_index={}, kv_connector_output=self._arrived()
        )
        self._update(SchedulerOutput.make_empty(), result)

    def _update(self, output: Any, result: Any) -> None:
        for outputs in self._scheduler.update_from_output(output, result).values():
            for item in outputs.outputs:
                self._next.sampled.append((item.request_id, len(item.new_token_ids)))
                if item.finish_reason is not None:
                    self._next.finished.append(item.request_id)

    def _note(self, output: Any) -> None:
        """Notes what the latest step preempts, and when the transfers end that it has started."""
        self._next.preempted += self._scheduler.take_preempted()
        if self._worker is not None:
            computes = output.total_num_scheduled_tokens > 0
            self._worker.receive(output.kv_connector_metadata, self._turn, computes=computes)
        elif self._load.connector:
            self._start_transfers()

    def _start_transfers(self) -> None:
        for name in self._scheduler.connector.started:
            self._transfers[name] = self._turn + self._plans[name].transfer_steps
        self._scheduler.connector.started.clear()

    def _arrived(self) -> Any:
        """Returns the transfers that are over, and the blocks that were lost."""
        if self._worker is not None:
            arrived, metadata = self._worker.take_ended(self._turn)
            return KVConnectorOutput(finished_recving=arrived, kv_connector_worker_meta=metadata)
        names = {name for name, turn in self._transfers.items() if turn <= self._turn}
        if not names:
            return None
        connector = self._scheduler.connector
        lost: set[int] = set()
        failed: set[str] = set()
        for name in names:
            del self._transfers[name]
            lost_block = self._plans[name].lost_block
            if lost_block == FAILED:
                failed.add(name)
            elif lost_block is not None and name in self._scheduler.requests:
                [blocks] = self._scheduler.kv_cache_manager.get_block_ids(name)
                lost.update(blocks[connector.first_blocks[name] + lost_block :])
        result = KVConnectorOutput(finished_recving=names, invalid_block_ids=lost)
        if failed:
            result.failed_recving = failed
        return result

    def _reply(self, name: str, index: int, output: Any) -> list[int]:
        """Returns the tokens of a request in a step: the right drafts, and the next one."""
        plan = self._plans[name]
        drafts = output.scheduled_spec_decode_tokens.get(name, ())
        accepted = 0
        if drafts and all(request.req_id != name for request in output.scheduled_new_reqs):
            accepted = plan.accepted_count(index, len(drafts))
        return [plan.reply_token(index + offset) for offset in range(accepted + 1)]

    def _propose(self, names: list[str]) -> None:
        """Gives the scheduler drafts for the next step."""
        drafts = []
        for name in names:
            request = self._scheduler.requests.get(name)
            count = self._load.max_drafts
            if request is not None and self._load.drafter == "ngram":
                count = self._plans[name].draft_count(request.num_output_tokens, count)
            drafts.append([0] * count)
        self._scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def publish(self, batch: Any) -> None:
        """Receives the KV events of a step, in place of vLLM's publisher."""
        self._next.events += map(_named_fields, batch.events)

    def take_rest(self) -> Step:
        """Returns what happened since the latest step."""
        return self._next


def _named_fields(event: Any) -> Any:
    """Returns an event as a map without defaults. Up to 0.23, vLLM's events are arrays."""
    fields = msgspec.to_builtins(event)
    if not isinstance(fields, list):
        return fields
    kind, *values = fields
    names = event.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(event.__struct_defaults__), strict=False))
    named = dict(zip(names, values, strict=True))
    given = {
        name: value
        for name, value in named.items()
        if name not in defaults or value != defaults[name]
    }
    return {"type": kind, **given}


def _features(plan: Plan) -> list[MultiModalFeatureSpec] | None:
    """Returns the images of a request, without data."""
    if not plan.images:
        return None
    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=image.name,
            mm_position=PlaceholderRange(offset=image.start, length=image.length),
        )
        for image in plan.images
    ]


def starts_of(output: Any) -> dict[str, int]:
    """Returns the computed tokens of each request before a step."""
    starts = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return starts


@lru_cache
def _read_model(folder: str, is_pooling: bool) -> ModelConfig:
    """Returns the configuration of the model, which takes as long as hundreds of steps."""
    return ModelConfig(
        model=folder,
        runner="pooling" if is_pooling else "generate",
        dtype="float32",
        skip_tokenizer_init=True,
    )


def _speculation(load: Load, model: ModelConfig, folder: str) -> SpeculativeConfig | None:
    if not load.drafter:
        return None
    parallel = ParallelConfig()
    if load.drafter == "draft_model":
        return SpeculativeConfig(
            method="draft_model",
            model=folder,
            num_speculative_tokens=load.max_drafts,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    return SpeculativeConfig(
        method="ngram_gpu" if load.is_asynchronous else "ngram",
        num_speculative_tokens=load.max_drafts,
        prompt_lookup_min=1,
        prompt_lookup_max=3,
        target_model_config=model,
        target_parallel_config=parallel,
    )


def _spec_of(group: Group, block_size: int) -> KVCacheSpec:
    attention: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    if group.kind == "sliding_window":
        return SlidingWindowSpec(**attention, sliding_window=group.window)
    if group.kind == "mamba":
        return MambaSpec(
            shapes=((1,),),
            dtypes=(torch.float32,),
            block_size=block_size,
            page_size_padded=FullAttentionSpec(**attention).page_size_bytes,
            mamba_cache_mode="align",
        )
    return FullAttentionSpec(**attention)


class OrderedNames(set[str]):
    """A set in the order of insertion, so that requests that end in a step have an order."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = dict.fromkeys(names)
        super().__init__(self._names)

    def add(self, name: str) -> None:
        """Adds a name."""
        self._names[name] = None
        super().add(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


class Notes:
    """What the judge adds to vLLM's schedulers: an order of the requests that end.

    It also notes preempted requests. Up to 0.24, vLLM does not report those of a reset.
    """

    finished_req_ids: set[str]
    preempted: OrderedNames

    def take_preempted(self) -> list[str]:
        """Returns the requests that were preempted since the latest call."""
        names = list(self.preempted)
        self.preempted = OrderedNames()
        return names

    def _preempt_request(self, request: Request, *arguments: Any, **options: Any) -> None:
        self.preempted.add(request.request_id)
        super()._preempt_request(request, *arguments, **options)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        self.finished_req_ids = OrderedNames()


class OrderedScheduler(Notes, Scheduler):  # type: ignore[misc]  # of vLLM
    """vLLM's scheduler."""


class OrderedAsyncScheduler(Notes, AsyncScheduler):  # type: ignore[misc]  # of vLLM
    """vLLM's scheduler of overlapping steps."""


def make_scheduler(load: Load, model_folder: str) -> Any:
    """Returns vLLM's scheduler with the options of a load."""
    model_length = load.max_tokens
    model = copy(_read_model(model_folder, load.is_pooling))
    model.max_model_len = model_length
    cache = CacheConfig(
        block_size=load.block_size,
        enable_prefix_caching=load.caches_prefixes,
        prefix_caching_hash_algo=load.hash_algorithm,
    )
    cache.num_gpu_blocks = load.blocks
    if any(group.kind == "mamba" for group in load.groups):
        cache.mamba_cache_mode = "align"
    events = None
    if load.caches_prefixes:
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    transfer = None
    if load.connector == OFFLOAD:
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=extra_config(load),
        )
    elif load.connector:
        transfer = KVTransferConfig(
            kv_connector="JudgeConnector",
            kv_connector_module_path="fidelity.judge_steps.vllm_connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"kind": load.connector},
        )
    lora = None
    if load.max_loras:
        lora = LoRAConfig(max_loras=load.max_loras, max_cpu_loras=8, max_lora_rank=8)
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        lora_config=lora,
        kv_events_config=events,
        kv_transfer_config=transfer,
        speculative_config=_speculation(load, model, model_folder),
        scheduler_config=SchedulerConfig(
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
            max_model_len=model_length,
            long_prefill_token_threshold=load.long_prefill_token_threshold,
            enable_chunked_prefill=load.enable_chunked_prefill,
            async_scheduling=load.is_asynchronous,
            is_encoder_decoder=False,
            policy="priority" if load.by_priority else "fcfs",
            **_newer_options(load),
        ),
    )
    # The CPU platform switches this off; the number of steps under way depends on it.
    config.scheduler_config.async_scheduling = load.is_asynchronous
    groups = load.groups or [Group("full_attention")]
    kv_cache = KVCacheConfig(
        num_blocks=load.blocks,
        kv_cache_tensors=_tensors(load),
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{number}"], _spec_of(group, load.block_size))
            for number, group in enumerate(groups)
        ],
        **_retention(load),
    )
    register_all_kvcache_specs(config)
    scheduler_type = OrderedAsyncScheduler if load.is_asynchronous else OrderedScheduler
    scheduler = scheduler_type(
        vllm_config=config,
        kv_cache_config=kv_cache,
        block_size=load.block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )
    scheduler.finished_req_ids = OrderedNames()
    scheduler.preempted = OrderedNames()
    if load.encoder_budget:
        config.scheduler_config.disable_chunked_mm_input = load.disable_chunked_mm_input
        scheduler.max_num_encoder_input_tokens = load.encoder_budget
        scheduler.encoder_cache_manager = EncoderCacheManager(load.encoder_cache_size)
    # The CPU build chooses the older runner, which receives resumed requests in another list.
    scheduler.use_v2_model_runner = True
    return scheduler


def _tensors(load: Load) -> list[Any]:
    """Returns what older releases compute the size of a block in a tier from."""
    if load.connector != OFFLOAD:
        return []
    size = load.blocks * BLOCK_BYTES
    return [SimpleNamespace(size=size, block_stride=0)]


def _newer_options(load: Load) -> dict[str, Any]:
    """Returns the options of the scheduler that older releases do not have, unless unused."""
    options: dict[str, Any] = {}
    if load.watermark:
        options["watermark"] = load.watermark
    if load.prefill_schedule_interval > 1:
        options["prefill_schedule_interval"] = load.prefill_schedule_interval
    if load.is_threshold_adaptive:
        options["long_prefill_token_threshold_adaptive"] = True
    if load.max_num_active_seqs is not None:
        options["max_num_active_seqs"] = load.max_num_active_seqs
    return options


def _retention(load: Load) -> dict[str, Any]:
    """Returns the field of the cache's configuration for `retention_interval`.

    It came with 0.29. Releases before read a variable when they create the cache.
    """
    if RETENTION in KVCacheConfig.__dataclass_fields__:
        return {RETENTION: load.retention_interval}
    variable = f"VLLM_{RETENTION.upper()}"
    if load.retention_interval is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = str(load.retention_interval)
    return {}


def steps_of(load: Load, model_folder: str) -> Steps:
    """Returns the steps of a load; an exception is its error."""
    try:
        return drive(load, VllmEngine(load, model_folder))
    except Exception as error:
        traceback.print_exc()
        return Steps([], error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Answers each line of standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # vLLM's libraries print
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin.buffer:
            steps = steps_of(msgspec.json.decode(line, type=Load), folder)
            answers.write(msgspec.json.encode(steps) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()

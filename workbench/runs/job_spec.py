"""A job of `simulate` as its author describes it. Start reading at `JobSpec`.

`workbench.runs.job_reader` makes a description of words and of files, and
`workbench.runs.job_flags.make_job` makes the `Job` that runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from config.cores import usable_cores
from config.declaration import COMMAND
from config.flags import FlagTable, words_of
from workbench.engine.costs import (
    AUTO_BACKEND,
    AUTO_DTYPE,
    MAX_CAPTURE_SIZE,
    DeviceWatts,
    Speculation,
)
from workbench.load.policies import LEAST_REQUESTS
from workbench.load.priorities import PriorityClass
from workbench.load.synthetic import Lengths
from workbench.runs.column_traces import TraceColumns
from workbench.runs.kv_tiers import KvTier
from workbench.runs.summary import Objective
from workbench.runs.sweeps import Sweep

FLAG_NAMES: Mapping[str, str] = {
    "model_config": "model",
    "num_gpu_blocks": "num-gpu-blocks-override",
}
"""Field -> its flag, where the names differ."""


class JobSpec(Struct, frozen=True, kw_only=True):
    """A load, the fleet that gets it, its objectives, and the files for the results.

    Each field is a flag of `simulate`. None stands for a value that the job determines.
    """

    texts: FlagTable = {}
    """The flags that were written or changed, in order, as text; those of plugins, too."""

    profile: str | None = None
    device: str | None = None
    model_config: str | None = None
    """Name of the model, or the path of its config.json."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    kv_cache_dtype: str = AUTO_DTYPE
    quantization: str = ""
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = MAX_CAPTURE_SIZE
    moe_backend: str = AUTO_BACKEND
    vllm_version: str = ""

    trace: Path | None = None
    study: Path | None = None
    trace_block_size: int | None = None
    trace_columns: TraceColumns | None = None
    conversations: int | None = None
    rate: float | None = None
    """Requests per second."""
    arrivals: str | None = None
    burstiness: float | None = None
    ramp_from: float | None = None
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    seconds: float | None = None
    num_requests: int | None = None
    prefix_groups: int | None = None
    prefix_tokens: int | None = None
    turns: int | None = None
    think: float | None = None
    """Seconds."""
    seed: int = 1

    in_flight: int | None = None
    turnaround: float | None = None
    """Seconds."""
    pods: int | None = None
    policy: str = LEAST_REQUESTS
    prefill_pods: int | None = None
    decode_pods: int | None = None
    transfer_bandwidth: float | None = None
    """Bytes per second."""
    transfer_latency: float | None = None
    """Seconds."""
    kv_bytes_per_token: float | None = None
    autoscale: str | None = None
    cold_start: str | None = None
    autoscale_every: float | None = None
    scrape_interval: float | None = None
    """Seconds, as the field before."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    prefill_schedule_interval: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    loras: list[int | tuple[str, float]] | None = None
    max_loras: int | None = None
    max_lora_rank: int | None = None
    kv_tiers: list[KvTier] | None = None
    kv_offload_policy: str = "lru"
    kv_offload_store_threshold: int = 0
    priorities: list[PriorityClass] | None = None
    speculative_config: Speculation | None = None

    json: Path | None = None
    requests: Path | None = None
    plot: Path | None = None
    html: Path | None = None
    compare: list[Path] | None = None
    sweep: Sweep | None = None
    goodput: list[str] | None = None
    gpu_hour_price: float | None = None
    device_watts: DeviceWatts | str | None = None
    slo: tuple[Objective, ...] = ()
    processes: int = msgspec.field(default_factory=usable_cores)

    def has(self, field: str) -> bool:
        """Returns whether a field was written or changed."""
        return flag_name(field) in self.texts

    @property
    def written(self) -> list[str]:
        """The fields that were written or changed."""
        return [field for field in field_names() if self.has(field)]

    def changed(self, **values: object) -> JobSpec:
        """Returns the job with other values of fields; None is the value of a flag that is absent.

        The values are numbers, texts, paths or booleans, which can be written as they are.
        """
        texts = dict(self.texts)
        for field, value in values.items():
            name = flag_name(field)
            if value is None:
                texts.pop(name, None)
            else:
                texts[name] = _text_of(value)
        return msgspec.structs.replace(self, **values, texts=texts)

    def updated(self, other: JobSpec) -> JobSpec:
        """Returns the job with all that was written in another one."""
        values = {field: getattr(other, field) for field in other.written}
        return msgspec.structs.replace(self, **values, texts={**self.texts, **other.texts})

    def without(self, *fields: str) -> JobSpec:
        """Returns the job with the defaults of some fields."""
        defaults = JobSpec()
        values = {field: getattr(defaults, field) for field in fields}
        dropped = {flag_name(field) for field in fields}
        texts = {name: text for name, text in self.texts.items() if name not in dropped}
        return msgspec.structs.replace(self, **values, texts=texts)

    @property
    def command(self) -> str:
        """The command line that repeats the job."""
        return f"{COMMAND} simulate {shlex.join(words_of(self.texts))}"


def field_names() -> tuple[str, ...]:
    """Returns the fields that are flags."""
    return tuple(name for name in JobSpec.__struct_fields__ if name != "texts")


def flag_name(field: str) -> str:
    """Returns the name of a field's flag, without dashes at its beginning."""
    return FLAG_NAMES.get(field, field.replace("_", "-"))


def _text_of(value: object) -> bool | str:
    """Returns a value as text of a command line; a switch as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)

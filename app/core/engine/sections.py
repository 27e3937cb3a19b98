"""The sections of the settings that the simulated engine reads."""

from typing import NamedTuple

from config.settings import (
    KVCacheSettings,
    LatencySettings,
    LoraSettings,
    SchedulingSettings,
    StepSettings,
)


class EngineSections(NamedTuple):
    """Limits of the engine, latencies of requests, and shared steps."""

    scheduling: SchedulingSettings
    latency: LatencySettings
    lora: LoraSettings
    steps: StepSettings
    kvcache: KVCacheSettings

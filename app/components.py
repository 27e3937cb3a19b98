"""What the rooms of one server are built on."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.clock.clock import LiveClock
from app.clock.streams import Streams
from app.dataset import Datasets, open_datasets
from app.lora.adapters import AdapterMemory, LoRARegistry, adapters_of
from app.metrics.recorder import Recorder
from app.schema import Schemas
from app.server import ranks
from app.tokenization import Tokenizer
from config import Settings
from config.live import LiveSettings
from config.settings import DatasetSettings, KVCacheSettings, ServerSettings


@dataclass(frozen=True, slots=True)
class Components:
    """One rank's settings, clock, randomness and tokenizer, and what it counts and keeps for all rooms."""

    live: LiveSettings
    rank: int
    server: ServerSettings
    """As this rank has them: its own port."""
    tokenizer: Tokenizer
    streams: Streams
    adapters: LoRARegistry
    adapter_memory: AdapterMemory
    datasets: Datasets
    recorder: Recorder
    clock: LiveClock = field(default_factory=LiveClock)
    schemas: Schemas = field(default_factory=Schemas)

    @classmethod
    def of(cls, settings: Settings, tokenizer: Tokenizer, rank: int) -> Components:
        """Build it. ConfigError for adapters that cannot be served."""
        lora = settings.lora
        adapters = adapters_of(lora, settings.model)
        return cls(
            live=LiveSettings(settings),
            rank=rank,
            server=ranks.served_by(settings.server, rank),
            tokenizer=tokenizer,
            streams=Streams(settings.reply.seed, rank),
            adapters=adapters,
            adapter_memory=AdapterMemory(adapters, lora.max_loras, lora.max_cpu_loras or lora.max_loras),
            datasets=open_datasets(dataset_settings(settings), tokenizer),
            recorder=_recorder(settings, rank),
        )

    @property
    def settings(self) -> Settings:
        """The settings of now."""
        return self.live.current


def cache_config(kvcache: KVCacheSettings) -> dict[str, str]:
    """Labels of vllm:cache_config_info that the settings decide."""
    return {
        "block_size": str(kvcache.block_size),
        "num_gpu_blocks": str(kvcache.kv_cache_size),
        "enable_prefix_caching": str(kvcache.enable_kvcache),
        "prefix_caching_hash_algo": kvcache.prefix_caching_hash_algo,
    }


def dataset_settings(settings: Settings) -> DatasetSettings:
    """The datasets that are used: an encoder says no words, so it has no use for recorded ones."""
    return DatasetSettings() if settings.model.mm_encoder_only else settings.dataset


def _recorder(settings: Settings, rank: int) -> Recorder:
    """Adapters are told of when there may be some."""
    lora, model = settings.lora, settings.model
    told = lora.enable_lora or lora.lora_modules or lora.allow_runtime_lora_updating
    most = lora.max_loras if told else None
    latency, connector = settings.latency, settings.kvcache.kv_connector
    fetching = latency.kv_cache_transfer_latency or latency.kv_cache_transfer_time_per_token
    return Recorder(
        model.served_names[0],
        model.max_model_len,
        cache_config(settings.kvcache),
        str(rank),
        max_loras=most,
        block_times=settings.kvcache.kv_cache_metrics,
        older_names=settings.metrics.simulator_metrics,
        transfers=bool(fetching or connector == "nixl"),
        steps=settings.steps.shared or settings.engine.is_real,
    )

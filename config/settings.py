"""All settings of the server, put together from their rooms (`config.sections`).

Flag and YAML key are a field's name with dashes, the environment variable is ``SIM_`` and the name in
capitals. Durations are seconds here.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from config.fields import rows
from config.sections.access import AccessSettings
from config.sections.api import ApiSettings
from config.sections.dataset import DatasetSettings
from config.sections.failures import FailureSettings
from config.sections.kvcache import KVCacheSettings
from config.sections.kvindex import KVIndexSettings
from config.sections.latency import LatencySettings
from config.sections.log import LogSettings
from config.sections.lora import LoraSettings
from config.sections.metrics import MetricsSettings
from config.sections.model import ModelSettings
from config.sections.reply import ReplySettings
from config.sections.scheduling import SchedulingSettings
from config.sections.server import ServerSettings
from config.sections.tls import TlsSettings
from config.sections.tokenizer import TokenizerSettings
from config.sections.tools import ToolSettings
from config.sections.tracing import TracingSettings

__all__ = [
    "AccessSettings",
    "ApiSettings",
    "DatasetSettings",
    "FailureSettings",
    "KVCacheSettings",
    "KVIndexSettings",
    "LatencySettings",
    "LogSettings",
    "LoraSettings",
    "MetricsSettings",
    "ModelSettings",
    "ReplySettings",
    "SchedulingSettings",
    "ServerSettings",
    "Settings",
    "TlsSettings",
    "TokenizerSettings",
    "ToolSettings",
    "TracingSettings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, one attribute per room."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    reply: ReplySettings = field(default_factory=ReplySettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    dataset: DatasetSettings = field(default_factory=DatasetSettings)
    kvcache: KVCacheSettings = field(default_factory=KVCacheSettings)
    kvindex: KVIndexSettings = field(default_factory=KVIndexSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    failures: FailureSettings = field(default_factory=FailureSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)

    def dump(self, masked: bool = True) -> dict[str, Any]:
        """Setting name to value for logs: durations as Go style text, lists as lists, secrets as ``***``."""
        shown: dict[str, Any] = {}
        for room in (getattr(self, group.name) for group in fields(self)):
            shown |= {row.name: row.shown(getattr(room, row.attribute), masked) for row in rows(type(room))}
        return shown

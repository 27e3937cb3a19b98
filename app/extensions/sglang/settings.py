"""Settings of the SGLang dialect."""

from typing import Annotated, Literal

from config.declaration import About, Section


class SglangSettings(Section, frozen=True, kw_only=True):
    """Routes, metrics and events of another engine."""

    dialect: Annotated[Literal["vllm", "sglang"], About(simulated=True)] = "vllm"
    """Engine whose interface the server exposes. If the value is sglang, the server also provides
    SGLang's native routes, metrics, KV events, and errors. See docs/sglang.md."""

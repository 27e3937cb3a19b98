"""What holds for settings when a model computes (`engine: llm`): other defaults, what has no meaning."""

from collections.abc import Callable, Mapping

from config.sections.model import OWN_LENGTH
from config.settings import BY_NAME, SECTIONS, Settings
from config.validation import wrong

REAL = "llm"
DEFAULTS: Mapping[str, object] = {
    "max-model-len": OWN_LENGTH,
    "max-num-seqs": 16,
    "max-num-batched-tokens": 512,
    "enable-kvcache": True,
    "kv-cache-size": 1024,
    "block-size": 16,
}
"""Where nothing else is said; those of `EngineProcessOptions`."""
OF_A_SIMULATION = (
    *("mode", "task", "embeddings-with-chat", "mm-encoder-only", "omni", "image-emission-rate"),
    *("reasoning-tokens", "timing", "profile", "model-config", "long-prefill-token-threshold"),
    *("script", "dataset-path", "dataset-url", "dataset-in-memory"),
    *("lora-modules", "enable-lora", "allow-runtime-lora-updating", "lora-residency-metrics"),
    *("kv-cache-full", "global-cache-hit-threshold", "kv-cache-metrics"),
    *("render-url", "force-dummy-tokenizer", "role", "fake-metrics"),
    *(name.replace("_", "-") for name in SECTIONS["latency"].__struct_fields__),
)
"""Settings by which a simulation plays what a model is, or does, by itself."""
SIMULATED = "is for the simulated engine alone: engine is llm"
DEVICES = ("", "auto", "cuda", "mps", "cpu")
TOOL_PARSERS = ("", "hermes", "llama3_json")

Flaw = tuple[str, str, Callable[[Settings], bool]]
WRONG: tuple[Flaw, ...] = (
    ("device", "must be auto, cuda, mps or cpu: engine is llm", lambda at: at.steps.device not in DEVICES),
    (
        "tool-call-parser",
        "must be hermes or llama3_json: engine is llm",
        lambda at: at.tools.tool_call_parser not in TOOL_PARSERS,
    ),
    (
        "kv-connector",
        "must be none: engine is llm, which has no connector",
        lambda at: at.kvcache.kv_connector not in ("", "none"),
    ),
    (
        "enable-chunked-prefill",
        "must be true: engine is llm, which computes long prompts in several steps",
        lambda at: not at.steps.enable_chunked_prefill,
    ),
    (
        "tensor-parallel-size",
        "must be 1: engine is llm, which computes on one device",
        lambda at: at.model.tensor_parallel_size != 1,
    ),
)
"""A setting, what it must be, and whether it is wrong."""


def real_defaults(engine: str) -> Mapping[str, object]:
    """By setting; nothing for a simulation."""
    return DEFAULTS if engine == REAL else {}


def check_real(settings: Settings, sources: Mapping[str, str]) -> None:
    """ConfigError for the first setting that makes no sense with a model that computes."""
    if not settings.engine.is_real:
        return
    for name in OF_A_SIMULATION:
        row = BY_NAME[name]
        if row.value(settings) != row.default:
            raise wrong(row, row.write(row.value(settings)), sources.get(name, "default"), SIMULATED)
    for name, rule, is_wrong in WRONG:
        if is_wrong(settings):
            row = BY_NAME[name]
            raise wrong(row, row.write(row.value(settings)), sources.get(name, "default"), rule)

"""The rules between settings, tried in a fixed order, and the line that tells which setting is wrong."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from config.declaration import ConfigError
from config.settings import BY_NAME, MASK, SECTIONS, Setting, Settings, Table

FIRST = (
    *("model", "mode", "port"),
    *("inter-token-latency", "inter-token-latency-std-dev"),
    *("time-to-first-token", "time-to-first-token-std-dev"),
    *("prefill-overhead", "prefill-time-per-token", "prefill-time-std-dev"),
    *("time-factor-under-load", "max-model-len", "max-num-seqs", "max-waiting-queue-length"),
)
"""Order of the reference simulator, whose first refusal is the one that users know; all others come later."""


class Agreement(Struct, frozen=True):
    """A rule between several sections; it is told of the setting `name`."""

    name: str
    text: str
    holds: Callable[[Settings], bool]


AGREEMENTS = (
    Agreement(
        "max-cpu-loras",
        "must not be less than max-loras",
        lambda at: at.lora.max_cpu_loras is None or at.lora.max_cpu_loras >= at.lora.max_loras,
    ),
    Agreement(
        "ssl-certfile",
        "must be given together with ssl-keyfile",
        lambda at: (at.tls.ssl_certfile is None) == (at.tls.ssl_keyfile is None),
    ),
    Agreement(
        "self-signed-certs",
        "must not be given together with ssl-certfile",
        lambda at: not (at.tls.self_signed_certs and at.tls.ssl_certfile),
    ),
    Agreement(
        "dataset-path",
        "must be empty in mode echo",
        lambda at: not (at.dataset.dataset_path and at.reply.mode == "echo"),
    ),
    Agreement(
        "dataset-url",
        "must be given together with dataset-path",
        lambda at: at.dataset.dataset_url is None or bool(at.dataset.dataset_path),
    ),
    Agreement(
        "kv-index-bind",
        "must be empty when this server plays several ranks: they cannot share a port",
        lambda at: not at.kvindex.kv_index_bind or len(at.server.ranks) == 1,
    ),
    Agreement(
        "role",
        "has no ranks: data-parallel-size must be 1",
        lambda at: at.kvindex.role != "indexer" or len(at.server.ranks) == 1,
    ),
    Agreement(
        "max-num-batched-tokens",
        "must not be less than max-num-seqs, or some sequences would never get a token",
        lambda at: not at.steps.shared or at.steps.max_num_batched_tokens >= at.scheduling.max_num_seqs,
    ),
    Agreement(
        "kv-cache-size",
        "must hold a prompt of max-model-len tokens, and the null block",
        lambda at: (
            not at.steps.shared
            or (at.kvcache.kv_cache_size - 1) * at.kvcache.block_size >= at.model.max_model_len
        ),
    ),
    Agreement(
        "enable-chunked-prefill",
        "must be true where max-num-batched-tokens is less than max-model-len",
        lambda at: (
            not at.steps.shared
            or at.steps.enable_chunked_prefill
            or at.steps.max_num_batched_tokens >= at.model.max_model_len
        ),
    ),
    Agreement(
        "port",
        "must leave room for data-parallel-size ports up to 65535",
        lambda at: at.server.port + len(at.server.ranks) <= 65536,
    ),
    Agreement(
        "grpc-port",
        "must leave room for data-parallel-size ports up to 65535, none of which is one of port's",
        lambda at: (
            at.server.grpc_port is None
            or at.server.grpc_port + len(at.server.ranks) <= 65536
            and abs(at.server.grpc_port - at.server.port) >= len(at.server.ranks)
        ),
    ),
    Agreement(
        "grpc",
        "goes without HTTPS only: certificates must be left out",
        lambda at: not (at.server.speaks_grpc and at.tls.enabled),
    ),
    Agreement(
        "fast-path",
        "must be true where gRPC is answered",
        lambda at: at.server.fast_path or not at.server.speaks_grpc,
    ),
)
OF_A_SIMULATION = (
    *("mode", "task", "embeddings-with-chat", "mm-encoder-only", "omni", "image-emission-rate"),
    *("reasoning-tokens", "timing", "profile", "model-config", "long-prefill-token-threshold"),
    *("script", "dataset-path", "dataset-url", "dataset-in-memory"),
    *("lora-modules", "enable-lora", "allow-runtime-lora-updating", "lora-residency-metrics"),
    *("kv-cache-full", "global-cache-hit-threshold", "kv-cache-metrics"),
    *("render-url", "force-dummy-tokenizer", "role", "fake-metrics"),
    *(name.replace("_", "-") for name in SECTIONS["latency"].__struct_fields__),
)
"""Settings of what a simulation plays; a model that computes (`engine: llm`) takes their defaults only."""


def _is_default(name: str) -> Callable[[Settings], bool]:
    row = BY_NAME[name]
    return lambda at: bool(row.value(at) == row.default)


SIMULATED = "is for the simulated engine alone: engine is llm"
OF_A_MODEL = (
    *(Agreement(name, SIMULATED, _is_default(name)) for name in OF_A_SIMULATION),
    Agreement(
        "device",
        "must be auto, cuda, mps or cpu: engine is llm",
        lambda at: at.steps.device in ("", "auto", "cuda", "mps", "cpu"),
    ),
    Agreement(
        "tool-call-parser",
        "must be hermes or llama3_json: engine is llm",
        lambda at: at.tools.tool_call_parser in ("", "hermes", "llama3_json"),
    ),
    Agreement(
        "kv-connector",
        "must be none: engine is llm, which has no connector",
        lambda at: at.kvcache.kv_connector in ("", "none"),
    ),
    Agreement(
        "enable-chunked-prefill",
        "must be true: engine is llm, which computes long prompts in several steps",
        lambda at: at.steps.enable_chunked_prefill,
    ),
    Agreement(
        "tensor-parallel-size",
        "must be 1: engine is llm, which computes on one device",
        lambda at: at.model.tensor_parallel_size == 1,
    ),
)
"""Rules that hold beside `AGREEMENTS` where a model computes."""


def in_order(table: Table) -> Iterator[Setting]:
    """As settings are read and their rules are tried: the first that does not hold stops the start."""
    yield from (table.by_name[name] for name in FIRST)
    yield from (row for row in table.rows if row.name not in FIRST)


def read(row: Setting, raw: object, source: str) -> object:
    """The value that `raw`, from `source`, stands for. Raises ConfigError when it breaks a rule."""
    try:
        return row.read(raw)
    except ValueError as error:
        raise wrong(row, raw, source, str(error)) from None


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise ConfigError for the first value that does not fit to others; `sources` says where it is from."""
    for row in in_order(settings.table):
        value = row.value(settings)
        flaws = (rule.flaw(value, getattr(settings, row.group)) for rule in row.rules if value is not None)
        if flaw := next(filter(None, flaws), ""):
            raise wrong(row, row.write(value), sources.get(row.name, "default"), flaw)
    for agreement in (*AGREEMENTS, *(OF_A_MODEL if settings.engine.is_real else ())):
        if not agreement.holds(settings):
            row = BY_NAME[agreement.name]
            text = row.write(row.value(settings))
            raise wrong(row, text, sources.get(row.name, "default"), agreement.text)


def suggestion(name: str, prefix: str = "", names: Iterable[str] = BY_NAME) -> str:
    """``; did you mean ...?`` when one of `names` (settings) is close to `name`, else nothing."""
    from difflib import get_close_matches  # only needed for what is wrong

    names = list(names)
    close = get_close_matches(name, names, n=1, cutoff=0.75)
    close = close or [it for it in names if sorted(it) == sorted(name)]
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def wrong(row: Setting, value: object, source: str, rule: str) -> ConfigError:
    """The one line that tells a user which value is wrong, where it stands and why."""
    shown = MASK if row.secret else _short(value)
    return ConfigError(f"setting {row.name}: {shown} ({source}) {rule}")


def _short(value: object, longest: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"

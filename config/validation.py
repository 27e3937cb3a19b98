"""Rules between settings, checked in a fixed order, at the start and at each change of a running
server.
"""

from collections.abc import Callable, Iterator, Mapping

from config.declaration import ConfigError, shown, suggestion
from config.settings import BY_NAME, MASK, SECTIONS, ServerSettings, Setting, Settings, Table

FIRST = (
    *("model", "mode", "port"),
    *("inter-token-latency", "inter-token-latency-std-dev"),
    *("time-to-first-token", "time-to-first-token-std-dev"),
    *("prefill-overhead", "prefill-time-per-token", "prefill-time-std-dev"),
    *("time-factor-under-load", "max-model-len", "max-num-seqs", "max-waiting-queue-length"),
)
"""First settings to check, in the order of the reference simulator, so that users get the same
error.
"""


def _disagreements(at: Settings) -> Iterator[tuple[str, str]]:
    ranks, server = len(at.server.ranks), at.server
    if at.lora.max_cpu_loras is not None and at.lora.max_cpu_loras < at.lora.max_loras:
        yield "max-cpu-loras", "must not be less than max-loras"
    if (at.tls.ssl_certfile is None) != (at.tls.ssl_keyfile is None):
        yield "ssl-certfile", "must be given together with ssl-keyfile"
    if at.tls.self_signed_certs and at.tls.ssl_certfile:
        yield "self-signed-certs", "must not be given together with ssl-certfile"
    if at.dataset.dataset_path and at.reply.mode == "echo":
        yield "dataset-path", "must be empty in mode echo"
    if at.dataset.dataset_url is not None and not at.dataset.dataset_path:
        yield "dataset-url", "must be given together with dataset-path"
    if at.replay.replay_miss == "record" and not at.replay.target:
        yield "replay-miss", "must be given together with target"
    if at.replay.target and not at.replay.replay:
        yield "target", "must be given together with replay"
    if at.kvindex.kv_index_bind and ranks > 1:
        yield (
            "kv-index-bind",
            "must be empty when this server plays several ranks: they cannot share a port",
        )
    if at.kvindex.role == "indexer" and ranks > 1:
        yield "role", "has no ranks: data-parallel-size must be 1"
    if at.steps.shared:
        yield from _step_flaws(at)
    room = "must leave room for data-parallel-size ports up to 65535"
    if server.port + ranks > 65536:
        yield "port", room
    grpc_port = server.grpc_port
    if grpc_port is not None and (
        grpc_port + ranks > 65536 or abs(grpc_port - server.port) < ranks
    ):
        yield "grpc-port", f"{room}, none of which is one of port's"
    if server.uds is not None:
        yield from _socket_flaws(server)
    if server.speaks_grpc and at.tls.enabled:
        yield "grpc", "goes without HTTPS only: certificates must be left out"
    if server.speaks_grpc and not server.fast_path:
        yield "fast-path", "must be true where gRPC is answered"
    if at.engine.is_real:
        yield from _real_engine_flaws(at)


def _socket_flaws(server: ServerSettings) -> Iterator[tuple[str, str]]:
    """Yields what contradicts a Unix socket."""
    if len(server.ranks) > 1:
        yield (
            "uds",
            "must be empty when this server plays several ranks: each has a port of its own",
        )
    if server.grpc_port is not None:
        yield "grpc-port", "must be empty where uds is set: no TCP port is opened"


def _step_flaws(at: Settings) -> Iterator[tuple[str, str]]:
    tokens, length, cache = at.steps.max_num_batched_tokens, at.model.max_model_len, at.kvcache
    if tokens < at.scheduling.max_num_seqs:
        rule = "must not be less than max-num-seqs, or some sequences would never get a token"
        yield "max-num-batched-tokens", rule
    if (cache.kv_cache_size - 1) * cache.block_size < length:
        yield "kv-cache-size", "must hold a prompt of max-model-len tokens, and the null block"
    if not at.steps.enable_chunked_prefill and tokens < length:
        rule = "must be true where max-num-batched-tokens is less than max-model-len"
        yield "enable-chunked-prefill", rule


SIMULATED_ONLY = (
    *("mode", "task", "embeddings-with-chat", "mm-encoder-only", "omni", "image-emission-rate"),
    *("timing", "profile", "model-config", "long-prefill-token-threshold"),
    *("script", "dataset-path", "dataset-url", "dataset-in-memory"),
    *("lora-modules", "enable-lora", "allow-runtime-lora-updating", "lora-residency-metrics"),
    *("global-cache-hit-threshold", "kv-cache-metrics"),
    *("render-url", "force-dummy-tokenizer", "role", "fake-metrics"),
    *(name.replace("_", "-") for name in SECTIONS["latency"].__struct_fields__),
)
"""Settings of the simulated engine only; a real engine (`engine:

llm`) accepts only their defaults.
"""


def _real_engine_flaws(at: Settings) -> Iterator[tuple[str, str]]:
    for row in (BY_NAME[name] for name in SIMULATED_ONLY):
        if row.value(at) != row.default:
            yield row.name, "is for the simulated engine alone: engine is llm"
    if at.steps.device not in ("", "auto", "cuda", "mps", "cpu"):
        yield "device", "must be auto, cuda, mps or cpu: engine is llm"
    try:
        at.engine.speculation()
    except ValueError as error:
        yield "speculative-config", f"is not prompt lookup, which alone engine llm has: {error}"
    if at.tools.tool_call_parser not in ("", "hermes", "llama3_json"):
        yield "tool-call-parser", "must be hermes or llama3_json: engine is llm"
    if at.kvcache.kv_connector not in ("", "none"):
        yield "kv-connector", "must be none: engine is llm, which has no connector"
    if not at.steps.enable_chunked_prefill:
        rule = "must be true: engine is llm, which computes long prompts in several steps"
        yield "enable-chunked-prefill", rule
    if at.model.tensor_parallel_size != 1:
        yield "tensor-parallel-size", "must be 1: engine is llm, which computes on one device"


def in_order(table: Table) -> Iterator[Setting]:
    """Yields settings in the order of their checks; the first broken rule stops the start."""
    yield from (table.by_name[name] for name in FIRST)
    yield from (row for row in table.rows if row.name not in FIRST)


def read(row: Setting, raw: object, source: str) -> object:
    """Converts `raw`, from `source`, to a value. Raises ConfigError for a broken rule."""
    try:
        return row.read(raw)
    except ValueError as error:
        raise wrong(row, raw, source, str(error)) from None


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raises ConfigError for the first conflict between values; `sources` has setting name ->
    source.
    """
    for row in in_order(settings.table):
        value = row.value(settings)
        flaws = (
            rule.flaw(value, getattr(settings, row.group))
            for rule in row.rules
            if value is not None
        )
        if flaw := next(filter(None, flaws), ""):
            raise wrong(row, row.write(value), sources.get(row.name, "default"), flaw)
    for name, rule in _disagreements(settings):
        row = BY_NAME[name]
        raise wrong(row, row.write(row.value(settings)), sources.get(row.name, "default"), rule)


def wrong(row: Setting, value: object, source: str, rule: str) -> ConfigError:
    """Returns the error for a wrong value, in one line: setting, value, source and rule."""
    return ConfigError(
        f"setting {row.name}: {MASK if row.about.secret else shown(value)} ({source}) {rule}"
    )


class LiveSettings:
    """Current settings. Callable[[Settings], None]s receive every change.

    Each change is checked as a whole, then applied as a whole. For one greenlet hub only.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._subscribers: list[Callable[[Settings], None]] = []

    def subscribe(self, subscriber: Callable[[Settings], None]) -> None:
        """Calls `subscriber` with all settings, now and after every change.

        It must not raise or block.
        """
        self._subscribers.append(subscriber)
        subscriber(self.current)

    def change(self, values: Mapping[str, object]) -> Settings:
        """Sets settings by name, with values as in YAML.

        Changes nothing on the ConfigError of `changed`.
        """
        self.current = self.changed(values)
        for subscriber in self._subscribers:
            subscriber(self.current)
        return self.current

    def changed(self, values: Mapping[str, object]) -> Settings:
        """Returns the settings after a change; ConfigError for an unknown, constant or invalid one."""
        table = self.current.table
        found: dict[str, object] = {}
        for name, raw in values.items():
            row = table.by_name.get(name)
            if row is None:
                raise ConfigError(
                    f"unknown setting {name!r}{suggestion(name, names=table.by_name)}"
                )
            if not row.about.live:
                raise ConfigError(f"setting {name}: cannot change while the server runs")
            found[name] = read(row, raw, "change")
        changed = self.current.changed(found)
        check(changed, dict.fromkeys(values, "change"))
        return changed

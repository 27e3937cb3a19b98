"""Rules between settings, checked at the start and at each change of a running server."""

from collections.abc import Callable, Iterator, Mapping

from config.declaration import PORTS, ConfigError, shown, suggestion
from config.settings import MASK, SectionT, ServerSettings, Setting, Settings, Table

FIRST = (
    "model",
    "mode",
    "port",
    "inter-token-latency",
    "inter-token-latency-std-dev",
    "time-to-first-token",
    "time-to-first-token-std-dev",
    "prefill-overhead",
    "prefill-time-per-token",
    "prefill-time-std-dev",
    "time-factor-under-load",
    "max-model-len",
    "max-num-seqs",
    "max-waiting-queue-length",
)
"""First settings to check, in the order of llm-d-inference-sim, for the same first error."""
Conflicts = Iterator[tuple[str, str]]
"""Setting name and broken rule of each conflict."""


def in_order(table: Table) -> Iterator[Setting]:
    """Yields settings in the order of their checks; the first broken rule stops the start."""
    yield from (table.by_name[name] for name in FIRST)
    yield from (row for row in table.rows if row.name not in FIRST)


def read(row: Setting, raw: object, source: str) -> object:
    """Converts `raw`, from `source`, to a value.

    Raises:
        ConfigError: A rule is broken.
    """
    try:
        return row.read(raw)
    except ValueError as error:
        raise wrong(row, raw, source, str(error)) from None


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Checks all rules; `sources` has setting name -> source.

    Raises:
        ConfigError: A rule is broken; the message has the first one.
    """
    for row in in_order(settings.table):
        value = row.value(settings)
        if value is None:
            continue
        section = getattr(settings, row.group)
        for rule in row.rules:
            flaw = rule.flaw(value, section)
            if flaw:
                raise wrong(row, row.write(value), sources.get(row.name, "default"), flaw)
    for name, flaw in _conflicts(settings):
        row = settings.table.by_name[name]
        raise wrong(row, row.write(row.value(settings)), sources.get(row.name, "default"), flaw)


def wrong(row: Setting, value: object, source: str, rule: str) -> ConfigError:
    """Returns the error for a wrong value, in one line: setting, value, source and rule."""
    text = MASK if row.about.secret else shown(value)
    return ConfigError(f"setting {row.name}: {text} ({source}) {rule}")


def _conflicts(settings: Settings) -> Conflicts:
    lora = settings.lora
    if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        yield "max-cpu-loras", "must not be less than max-loras"
    yield from _certificate_conflicts(settings)
    if settings.steps.shared:
        yield from _step_conflicts(settings)
    yield from _port_conflicts(settings.server)
    yield from _grpc_conflicts(settings)
    if settings.engine.is_real:
        for row in settings.table.rows:
            if row.about.simulated and row.value(settings) != row.default:
                yield row.name, "is for the simulated engine only: engine is llm"
    for group in settings.table.sections:
        yield from getattr(settings, group).conflicts(settings)
    yield from settings.conflicts()


def _certificate_conflicts(settings: Settings) -> Conflicts:
    tls = settings.tls
    if (tls.ssl_certfile is None) != (tls.ssl_keyfile is None):
        yield "ssl-certfile", "must be used together with ssl-keyfile"
    if tls.self_signed_certs and tls.ssl_certfile:
        yield "self-signed-certs", "cannot be combined with ssl-certfile"


def _step_conflicts(settings: Settings) -> Conflicts:
    steps = settings.steps
    cache = settings.kvcache
    max_tokens = steps.max_num_batched_tokens
    max_length = settings.model.max_model_len
    if max_tokens < settings.scheduling.max_num_seqs:
        rule = "must not be less than max-num-seqs, or some sequences would never get a token"
        yield "max-num-batched-tokens", rule
    if (cache.kv_cache_size - 1) * cache.block_size < max_length:
        yield "kv-cache-size", "must hold a prompt of max-model-len tokens, and the null block"
    if not steps.enable_chunked_prefill and max_tokens < max_length:
        rule = "must be true when max-num-batched-tokens is less than max-model-len"
        yield "enable-chunked-prefill", rule


def _port_conflicts(server: ServerSettings) -> Conflicts:
    ranks = len(server.ranks)
    rule = "must leave room for data-parallel-size ports up to 65535"
    if server.port + ranks > PORTS:
        yield "port", rule
    grpc_port = server.grpc_port
    if grpc_port is not None and (
        grpc_port + ranks > PORTS or abs(grpc_port - server.port) < ranks
    ):
        yield "grpc-port", f"{rule}, without the ports of the setting port"
    if server.uds is None:
        return
    if ranks > 1:
        yield (
            "uds",
            "must be empty when this server has several ranks: each rank needs a port",
        )
    if grpc_port is not None:
        yield "grpc-port", "must be empty when uds is set: no TCP port is opened"


def _grpc_conflicts(settings: Settings) -> Conflicts:
    if not settings.server.speaks_grpc:
        return
    if settings.tls.enabled:
        yield "grpc", "cannot be used with HTTPS: remove the certificates"
    if not settings.server.fast_path:
        yield "fast-path", "must be true when gRPC is enabled"


class LiveSettings:
    """Current settings of a running server. Subscribers receive every change.

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

    def follow(self, kind: type[SectionT], apply: Callable[[SectionT], None]) -> None:
        """Calls `apply` with a section of the settings, now and after every change.

        It must not raise or block.
        """

        def apply_section(settings: Settings) -> None:
            apply(settings.section(kind))

        self.subscribe(apply_section)

    def watch(self, refresh: Callable[[], None]) -> None:
        """Calls `refresh` now and after every change, when `current` has the change.

        It must not raise or block.
        """

        def refresh_after(settings: Settings) -> None:
            refresh()

        self.subscribe(refresh_after)

    def change(self, values: Mapping[str, object]) -> Settings:
        """Sets settings by name, with values as in YAML.

        Raises:
            ConfigError: As `changed`; nothing changes.
        """
        self.current = self.changed(values)
        for subscriber in self._subscribers:
            subscriber(self.current)
        return self.current

    def changed(self, values: Mapping[str, object]) -> Settings:
        """Returns the settings after a change.

        Raises:
            ConfigError: A setting is unknown, not live, or invalid.
        """
        table = self.current.table
        changes: dict[str, object] = {}
        for name, raw in values.items():
            row = table.by_name.get(name)
            if row is None:
                raise ConfigError(
                    f"unknown setting {name!r}{suggestion(name, names=table.by_name)}"
                )
            if not row.about.live:
                raise ConfigError(f"setting {name}: cannot be changed while the server is running")
            changes[name] = read(row, raw, "change")
        changed = self.current.changed(changes)
        check(changed, dict.fromkeys(values, "change"))
        return changed

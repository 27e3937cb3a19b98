"""Settings of the socket, the process, HTTPS, access, and plugins."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from config.declaration import (
    About,
    Count,
    Duration,
    NonEmpty,
    NonEmptyItems,
    Port,
    PositiveDuration,
    Section,
    install,
)

Rank = Annotated[int, Meta(le=7)]
ReachedAs = Annotated[
    tuple[Annotated[str, Meta(pattern=r"(?a)\A([\w.:-]{1,253}|\*)\Z")], ...],
    Meta(description="must only have ASCII host names and addresses, or * alone"),
]
RootPath = Annotated[
    str, Meta(pattern=r"\A(/[^/\s?#]+)*/?\Z", description="must be a path such as /models/one")
]


class ServerSettings(Section, frozen=True, kw_only=True):
    """The listening socket and the life of the process."""

    host: NonEmpty = "0.0.0.0"
    """Address to listen on."""
    port: Annotated[Port, About(env=("PORT",))] = 8000
    """TCP port to listen on."""
    uds: Annotated[NonEmpty | None, About(path=True, created=True)] = None
    """Unix socket to listen on instead: no TCP port is opened, and host and port have no effect."""
    grpc: Annotated[
        bool,
        About(
            "Answer gRPC, too, on the same port: vLLM's service VllmEngine; see docs/grpc.md. "
            f"Install it first: {install('grpc')}."
        ),
    ] = False
    grpc_port: Port | None = None
    """Another port that answers gRPC, which this switches on; rank k has this port + k."""
    max_request_body_size_mb: Annotated[int, Meta(ge=1, le=512), About(unit="MiB")] = 4
    """Larger request bodies are answered with 413."""
    max_json_values: Annotated[int, Meta(ge=1000)] = 400_000
    """Most commas and opening brackets of a request body; one with more is answered with 413."""
    startup_duration: Duration = 0.0
    """How long the server answers that it is not ready after its start."""
    drain_duration: Duration = 1.0
    """How long after SIGTERM new requests are served while the server answers that it is not
    ready; ends early when no client is connected. Part of graceful-timeout."""
    graceful_timeout: Duration = 30.0
    """How long running streams may go on after SIGTERM."""
    client_timeout: PositiveDuration = 60.0
    """Time that a client has to deliver a whole request, and may take no bytes of its answer."""
    keep_alive_timeout: Duration = 75.0
    """How long an idle connection is kept open."""
    root_path: RootPath = ""
    """Path under which a proxy serves this server: requests may have it in front."""
    fast_path: bool = True
    """Answer plain requests for generation without Flask, several times faster; the answers are the
    same. Off, all go the one way that other workers have, too."""
    data_parallel_size: Annotated[int, Meta(ge=1, le=8), About(unit="ranks")] = 1
    """Ranks of this server: each is a separate process, on port + rank."""
    data_parallel_rank: Rank | None = None
    """Rank that this server plays alone, on its port as it is; data-parallel-size is then the
    number of all ranks. Empty, or negative, plays all ranks."""
    pod_name: Annotated[str, About(env=("POD_NAME",))] = ""
    """Sent as x-inference-pod, together with x-inference-port, when not empty."""
    pod_ip: Annotated[str, About(env=("POD_IP", "VLLM_HOST_IP"))] = ""
    """Address under which other servers reach this one; the host's name when empty."""
    pod_namespace: Annotated[str, About(env=("POD_NAMESPACE",))] = ""
    """Sent as x-inference-namespace when not empty."""
    server_dev_mode: Annotated[bool, About(env=("VLLM_SERVER_DEV_MODE",))] = False
    """Serve the development routes: sleep, wake_up, reset_prefix_cache, server_info and others."""
    profiling: bool = False
    """Serve start_profile and stop_profile, which do nothing and answer with success."""
    weight_transfer: bool = False
    """Play the weight updates of a trainer, which fail otherwise. They need server-dev-mode, and a
    simulated engine."""

    @property
    def speaks_grpc(self) -> bool:
        """True if the server answers gRPC, on its port or on another one."""
        return self.grpc or self.grpc_port is not None

    @property
    def rank(self) -> int | None:
        """The only rank of this server; None if the server has all ranks."""
        rank = self.data_parallel_rank
        if rank is None or rank < 0:
            return None
        return rank

    @property
    def ranks(self) -> range:
        """Ranks of this server; each has a process."""
        if self.rank is None:
            return range(self.data_parallel_size)
        return range(self.rank, self.rank + 1)


class TlsSettings(Section, frozen=True, kw_only=True):
    """HTTPS."""

    ssl_certfile: Annotated[str | None, About(path=True)] = None
    """PEM certificate chain, read again when it changes; needs ssl-keyfile."""
    ssl_keyfile: Annotated[str | None, About(path=True)] = None
    """PEM private key; needs ssl-certfile."""
    self_signed_certs: bool = False
    """Make a certificate at the start and serve with it."""

    @property
    def enabled(self) -> bool:
        """True if the server has a certificate."""
        return bool(self.ssl_certfile or self.self_signed_certs)


class AccessSettings(Section, frozen=True, kw_only=True):
    """Keys, origins and rates of requests."""

    api_key: Annotated[NonEmptyItems, About(env=("VLLM_API_KEY",), live=True, secret=True)] = ()
    """Requests below /v1, /v2, /inference and /cohere, or over gRPC, must bear one of these keys;
    no key when empty."""
    admin_key: Annotated[NonEmpty | None, About(live=True, secret=True)] = None
    """Key that requests below /admin must bear.

    When empty they bear an API key, if there are any.
    """
    allowed_origins: tuple[str, ...] = ()
    """Origins that browsers may ask from (CORS); * is every one, except on /admin, the console and
    control routes. Empty refuses every preflight."""
    allowed_methods: tuple[str, ...] = ("*",)
    """Methods that CORS allows."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that CORS allows."""
    allow_credentials: bool = False
    """Let CORS requests carry credentials."""
    allowed_hosts: ReachedAs = ()
    """Public names of this server. Without a key, /admin, the console and control routes refuse
    other names that a public DNS may point here; * accepts every name. See docs/access.md."""
    requests_per_minute: Annotated[Count | None, About(unit="requests", live=True)] = None
    """Generating requests that each key (or, without one, each address) may make; empty is no
    limit.
    """
    tokens_per_minute: Annotated[Count | None, About(unit="tokens", live=True)] = None
    """Prompt and reply tokens that each key (or address) may use; empty is no limit."""

    @property
    def named_hosts(self) -> tuple[str, ...]:
        """The items of `allowed_hosts` that are names."""
        return tuple(host for host in self.allowed_hosts if host != "*")


class Plugin(Struct, frozen=True):
    """An imported plugin."""

    name: str
    version: str
    """Version of the plugin; may be empty."""
    origin: str
    """Item of the setting `plugin`, or the package with the entry point."""
    extension: Any
    """A subclass of `app.plugins.Plugin`."""
    settings: type[Section] | None

    @property
    def group(self) -> str:
        """Attribute of `Settings` with the plugin's section."""
        return self.name.replace("-", "_")


class PluginSettings(Section, frozen=True, kw_only=True):
    """Plugins."""

    plugin: Annotated[NonEmptyItems, About(path=True)] = ()
    """Plugins, each a module or a path to a file FILE.py. The flag may be repeated."""
    installed_plugins: bool = True
    """Take the plugins of installed packages, too: entry points of the group understudy."""

"""Settings of the socket, the process, HTTPS, access, and plugins."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from config.declaration import (
    About,
    Duration,
    Extra,
    NonEmpty,
    NonEmptyItems,
    Port,
    PositiveDuration,
    Section,
    Size,
    install,
)
from config.files import DEFAULT_MAX_FILE_MIB, LARGEST_MAX_FILE_MIB
from config.json_text import MAX_WEIGHT

Rank = Annotated[int, Meta(le=7)]
ReachedAs = Annotated[
    tuple[Annotated[str, Meta(pattern=r"(?a)\A([\w.:-]{1,253}|\*)\Z")], ...],
    Meta(description="must only have ASCII host names and addresses, or * alone"),
]
RootPath = Annotated[
    str, Meta(pattern=r"\A(/[^/\s?#]+)*/?\Z", description="must be a path such as /models/one")
]
LAST_ANSWERS_S = 1.0
"""Longest time for the answers of failed requests, where a server ends as vLLM, in seconds."""
MAX_HEAD_BYTES = 1 << 30
MAX_HEADERS = 32_768
"""Most headers that gunicorn reads."""


class ServerSettings(Section, frozen=True, kw_only=True):
    """Listening socket, shutdown and data-parallel ranks."""

    host: NonEmpty = "0.0.0.0"
    """Address to listen on."""
    port: Annotated[Port, About(env=("PORT",))] = 8000
    """TCP port to listen on."""
    uds: NonEmpty | None = None
    """Unix socket to listen on instead of a TCP port. If this setting is used, host and port are
    ignored."""
    grpc: Annotated[
        bool | None,
        About(
            "Serve gRPC (vLLM's VllmEngine service) on the same port. For details, see "
            f"docs/grpc.md. Requires the grpc extra: {install('grpc')}. "
            "If this setting is empty, gRPC is served when the grpc extra is installed and HTTPS "
            "is off."
        ),
    ] = None
    grpc_port: Port | None = None
    """Separate port for gRPC. Setting this port enables gRPC. Rank k uses this port number plus
    k."""
    max_request_body_size_mb: Annotated[int, Meta(ge=1, le=512), About(unit="MiB")] = 4
    """Maximum size of a request body. Larger request bodies are rejected with status 413."""
    h11_max_incomplete_event_size: Annotated[
        int, Meta(ge=1, le=MAX_HEAD_BYTES), About(unit="bytes")
    ] = 4_194_304
    """Maximum size of the headers of a request. Larger headers are rejected with status 400."""
    h11_max_header_count: Annotated[int, Meta(ge=1, le=MAX_HEADERS)] = 256
    """Maximum number of the headers of a request. Requests with more headers are rejected with
    status 400."""
    max_json_values: Annotated[int, Meta(ge=1000)] = MAX_WEIGHT
    """Maximum number of JSON values in a request body, weighted by the time to decode them. Whole
    numbers count once, strings twice, decimal fractions, objects, and names four times, and numbers
    such as 1e300 count 1,000 times. Request bodies that exceed this limit are rejected with status
    413."""
    max_file_size_mb: Annotated[int, Meta(ge=1, le=LARGEST_MAX_FILE_MIB), About(unit="MiB")] = (
        DEFAULT_MAX_FILE_MIB
    )
    """Maximum size of a file, or of a server's response to a command, that is read at once. Files
    that are read line by line can have any size. Set this limit with its flag or environment
    variable, which also applies to the other commands."""
    cache_memory: Size = 96_000_000
    """Maximum memory of the caches whose contents can be computed again, such as the tokens of
    known prompts. The journal and other data have separate limits. For details, see
    docs/operations.md."""
    server_memory: Size | None = None
    """Memory that this server may take. The limits of requests in flight, the KV index, and other
    data depend on this setting. If this setting is empty, the server uses the memory limit of the
    container or, without one, the memory of the machine. For details, see docs/operations.md."""
    startup_duration: Duration = 0.0
    """Time after startup during which the server reports that it is not ready."""
    drain_duration: Duration = 1.0
    """Time after SIGTERM during which the server still accepts requests but reports that it is not
    ready. This period counts toward graceful-timeout and ends early if no clients are connected."""
    graceful_timeout: Duration = 30.0
    """In drain mode, the time from SIGTERM until running streams are cut off."""
    shutdown_mode: Literal["drain", "vllm"] = "drain"
    """How SIGTERM affects requests. If the value is drain, running requests can finish, and new
    requests are accepted until drain-duration is over and then rejected with status 503. If the
    value is vllm, requests that are still running after shutdown-timeout fail, and new requests are
    immediately rejected with status 500."""
    shutdown_timeout: Duration = 0.0
    """In vllm mode, the time after SIGTERM within which running requests must finish. If the value
    is 0s, the port closes immediately."""
    client_timeout: PositiveDuration = 60.0
    """Time after which the server disconnects a client that has not sent its complete request or
    does not read its response."""
    keep_alive_timeout: Duration = 75.0
    """Time after which an idle connection is closed."""
    root_path: RootPath = ""
    """Path prefix under which a proxy exposes this server. Request paths can begin with this
    prefix."""
    fast_path: bool = True
    """Serve requests for known routes without Flask, which is several times faster. This setting
    does not affect the content of responses. If this setting is false, all requests are processed
    as on other WSGI servers."""
    data_parallel_size: Annotated[int, Meta(ge=1, le=8), About(unit="ranks")] = 1
    """Number of data-parallel ranks in this server."""
    data_parallel_mode: Literal["ports", "internal", "external"] = "ports"
    """How ranks share ports. If the value is ports, each rank is a separate process that listens on
    the port number plus the rank number. If the value is external, each rank is also a separate
    process, but rank numbers in X-data-parallel-rank start at 0 on every port, as in vLLM. If the
    value is internal, all ranks share one process and one port, and each request runs on the least
    busy rank, as in vLLM."""
    data_parallel_rank: Rank | None = None
    """Rank that this server runs if the server runs only one rank. If this setting is used, the
    rank listens on the port that the port setting specifies, and data-parallel-size is the total
    number of ranks. If this setting is empty or negative, this server runs all ranks."""
    data_parallel_start_rank: Annotated[int, Meta(ge=0, le=1023)] = 0
    """First rank to run if this server does not run all ranks. See
    data-parallel-size-local."""
    data_parallel_size_local: Annotated[int, Meta(ge=1, le=8), About(unit="ranks")] | None = None
    """Number of ranks that this server runs. If this setting is used, data-parallel-size is the
    total number of ranks. If this setting is empty, this server runs all ranks."""
    pod_name: Annotated[str, About(env=("POD_NAME",))] = ""
    """Name of the pod in the x-inference-pod response header, which is sent along with
    x-inference-port, in the topic of KV events, and therefore in an index. If this setting is
    empty, neither header is sent, and the name in the topic is the address with the port."""
    pod_ip: Annotated[str, About(env=("POD_IP", "VLLM_HOST_IP"))] = ""
    """Address at which other servers reach this server. If this setting is empty, the host name is
    used."""
    pod_namespace: Annotated[str, About(env=("POD_NAMESPACE",))] = ""
    """Value for the x-inference-namespace response header. If this setting is empty, the header is
    not sent."""
    server_dev_mode: Annotated[bool, About(env=("VLLM_SERVER_DEV_MODE",))] = False
    """Serve the development routes, such as sleep, wake_up, reset_prefix_cache, and server_info."""
    profiling: bool = False
    """Serve start_profile and stop_profile, which succeed but have no effect."""
    weight_transfer: bool = False
    """Simulate weight updates from a trainer. If this setting is false, weight updates fail.
    Requires server-dev-mode and a simulated engine."""

    @property
    def speaks_grpc(self) -> bool:
        """True if the server answers gRPC, on its port or on another one."""
        return bool(self.grpc) or self.grpc_port is not None

    def extras(self) -> Mapping[Extra, str]:
        """Returns the optional part of gRPC."""
        if not self.speaks_grpc:
            return {}
        return {"grpc": "grpc"}

    @property
    def rank(self) -> int | None:
        """The only rank of this server; None if the server has all ranks."""
        rank = self.data_parallel_rank
        if rank is None or rank < 0:
            return None
        return rank

    @property
    def engine_ranks(self) -> range:
        """Ranks of the engines of this server."""
        if self.rank is not None:
            return range(self.rank, self.rank + 1)
        if self.data_parallel_size_local is None:
            return range(self.data_parallel_size)
        start = self.data_parallel_start_rank
        return range(start, start + self.data_parallel_size_local)

    @property
    def ranks(self) -> range:
        """Ranks with a process and a port: the first one has the engines of all internal ranks."""
        if self.data_parallel_mode == "internal":
            return self.engine_ranks[:1]
        return self.engine_ranks

    @property
    def process_memory(self) -> int:
        """Memory that each process of this server may take, in bytes."""
        from config.machine import usable_memory  # reads files

        return (self.server_memory or usable_memory()) // len(self.ranks)

    def memory_share(self, share: float, max_bytes: int) -> int:
        """Returns the `share` of `process_memory`, in bytes, but at most `max_bytes`."""
        return min(int(share * self.process_memory), max_bytes)

    @property
    def engines_per_port(self) -> int:
        """Number of engines behind each port."""
        return len(self.engine_ranks) // len(self.ranks)


class TlsSettings(Section, frozen=True, kw_only=True):
    """HTTPS."""

    ssl_certfile: str | None = None
    """PEM certificate chain, reloaded when it changes. Requires ssl-keyfile."""
    ssl_keyfile: str | None = None
    """PEM private key for the certificate. Requires ssl-certfile."""
    self_signed_certs: bool = False
    """Serve HTTPS with a certificate that is generated at startup."""

    @property
    def enabled(self) -> bool:
        """True if the server has a certificate."""
        return bool(self.ssl_certfile or self.self_signed_certs)


class AccessSettings(Section, frozen=True, kw_only=True):
    """API keys, origins and rate limits of requests."""

    api_key: Annotated[NonEmptyItems, About(env=("VLLM_API_KEY",), live=True, secret=True)] = ()
    """API keys that the server accepts. Requests to paths under /v1, /v2, /inference, and /cohere,
    and requests over gRPC, must include one of these keys. If this setting is empty, no key is
    required."""
    admin_key: Annotated[NonEmpty | None, About(live=True, secret=True)] = None
    """Key for requests to /fake_metrics and to paths under /admin. If this setting is empty,
    requests to /fake_metrics and /admin require an API key when api-key is set."""
    allowed_origins: tuple[str, ...] = ()
    """Origins from which browsers can send requests (CORS). The value * allows all origins, except
    on /admin, the console, and control routes. If this setting is empty, every preflight request is
    rejected."""
    allowed_methods: tuple[str, ...] = ("*",)
    """HTTP methods that are allowed in CORS requests."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that are allowed in CORS requests."""
    allow_credentials: bool = False
    """Allow CORS requests with credentials."""
    allowed_hosts: ReachedAs = ()
    """Public host names for this server. If no key is set, /admin, the console, and control routes
    reject any unlisted name that a public DNS server could resolve to this server. To accept every
    name, use *. For details, see docs/access.md."""

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

    plugin: Annotated[NonEmptyItems, About(repeated=True)] = ()
    """Plugins to load, each specified as a module name or as the path to a .py file."""
    installed_plugins: bool = True
    """Also load the plugins that installed packages provide as entry points in the understudy
    group."""

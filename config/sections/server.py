"""Settings of the socket, the process, HTTPS, and access."""

from typing import Annotated

from msgspec import Meta

from config.declaration import (
    About,
    Count,
    Duration,
    NonEmpty,
    NonEmptyItems,
    Port,
    PositiveDuration,
    Section,
)
from config.installation import install

Rank = Annotated[int, Meta(le=7)]
HostNames = Annotated[
    tuple[Annotated[str, Meta(pattern=r"(?a)\A[\w.*:-]{1,253}\Z")], ...],
    Meta(description="must only have ASCII host names and addresses"),
]
"""Host names as in certificates: xn-- form for names beyond ASCII, addresses without brackets."""
ReachedAs = Annotated[
    tuple[Annotated[str, Meta(pattern=r"(?a)\A[\w.:-]{1,253}\Z")], ...],
    Meta(description="must only have ASCII host names and addresses, without wildcards"),
]
RootPath = Annotated[
    str, Meta(pattern=r"\A(/[^/\s?#]+)*/?\Z", description="must be a path such as /models/one")
]


class ServerSettings(Section, frozen=True, kw_only=True):
    """The listening socket and the life of the process."""

    host: Annotated[NonEmpty, About("Address to listen on.")] = "0.0.0.0"
    port: Annotated[Port, About("TCP port to listen on.")] = 8000
    grpc: Annotated[
        bool,
        About(
            "Answer gRPC, too, on the same port: vLLM's service VllmEngine; see docs/grpc.md. "
            f"Install it first: {install('grpc')}."
        ),
    ] = False
    grpc_port: Annotated[
        Port | None,
        About("Another port that answers gRPC, which this switches on; rank k has this port + k."),
    ] = None
    max_request_body_size_mb: Annotated[
        int, Meta(ge=1, le=512), About("Larger request bodies are answered with 413.", unit="MiB")
    ] = 4
    max_json_values: Annotated[
        int,
        Meta(ge=1000),
        About("Most commas and opening brackets of a request body; one with more is answered with 413."),
    ] = 400_000
    startup_duration: Annotated[
        Duration, About("How long the server answers that it is not ready after its start.")
    ] = 0.0
    graceful_timeout: Annotated[Duration, About("How long running streams may go on after SIGTERM.")] = 30.0
    read_timeout: Annotated[PositiveDuration, About("Time that a client has to deliver a whole request.")] = (
        60.0
    )
    write_timeout: Annotated[
        PositiveDuration, About("Time that a client may take no bytes before its stream is dropped.")
    ] = 60.0
    keep_alive_timeout: Annotated[Duration, About("How long an idle connection is kept open.")] = 75.0
    root_path: Annotated[
        RootPath, About("Path under which a proxy serves this server: requests may have it in front.")
    ] = ""
    fast_path: Annotated[
        bool,
        About(
            "Answer plain requests for generation without Flask, several times faster; the answers are the "
            "same. Off, all go the one way that other workers have, too."
        ),
    ] = True
    data_parallel_size: Annotated[
        int,
        Meta(ge=1, le=8),
        About("Ranks of this server: each is a process of its own, on port + rank.", unit="ranks"),
    ] = 1
    data_parallel_rank: Annotated[
        Rank | None,
        About(
            "Rank that this server plays alone, on its port as it is; data-parallel-size then only "
            "tells how many there are. Empty, or negative, plays all ranks."
        ),
    ] = None
    pod_name: Annotated[
        str,
        About("Sent as x-inference-pod, together with x-inference-port, when not empty.", env=("POD_NAME",)),
    ] = ""
    pod_ip: Annotated[
        str,
        About(
            "Address under which other servers reach this one; the host's name when empty.",
            env=("POD_IP", "VLLM_HOST_IP"),
        ),
    ] = ""
    pod_namespace: Annotated[
        str, About("Sent as x-inference-namespace when not empty.", env=("POD_NAMESPACE",))
    ] = ""
    server_dev_mode: Annotated[
        bool,
        About(
            "Serve the development routes: sleep, wake_up, reset_prefix_cache, server_info and others.",
            env=("VLLM_SERVER_DEV_MODE",),
        ),
    ] = False
    profiling: Annotated[
        bool, About("Serve start_profile and stop_profile, which do nothing and say that they did.")
    ] = False
    weight_transfer: Annotated[
        bool,
        About(
            "Play the weight updates of a trainer, which fail otherwise. They need server-dev-mode, and a "
            "simulated engine."
        ),
    ] = False

    @property
    def speaks_grpc(self) -> bool:
        return self.grpc or self.grpc_port is not None

    @property
    def rank(self) -> int | None:
        """The only rank of this server; None if the server has all ranks."""
        rank = self.data_parallel_rank
        return None if rank is None or rank < 0 else rank

    @property
    def ranks(self) -> range:
        """Ranks of this server; each has a process."""
        return range(self.data_parallel_size) if self.rank is None else range(self.rank, self.rank + 1)


class TlsSettings(Section, frozen=True, kw_only=True):
    """HTTPS."""

    ssl_certfile: Annotated[
        str | None, About("PEM certificate chain, read again when it changes; needs ssl-keyfile.", path=True)
    ] = None
    ssl_keyfile: Annotated[str | None, About("PEM private key; needs ssl-certfile.", path=True)] = None
    self_signed_certs: Annotated[bool, About("Make a certificate at the start and serve with it.")] = False
    self_signed_names: Annotated[
        HostNames,
        About(
            "Further host names and addresses of the self-signed certificate; localhost, this host's "
            "name and the pod's are always there."
        ),
    ] = ()

    @property
    def enabled(self) -> bool:
        return bool(self.ssl_certfile or self.self_signed_certs)


class AccessSettings(Section, frozen=True, kw_only=True):
    """Who may ask, from where, and how often."""

    api_key: Annotated[
        NonEmptyItems,
        About(
            "Keys of which a request below /v1, /v2, /inference and /cohere, or over gRPC, must bear one; "
            "none when empty.",
            env=("VLLM_API_KEY",),
            live=True,
            secret=True,
        ),
    ] = ()
    admin_key: Annotated[
        NonEmpty | None,
        About(
            "Key that requests below /admin must bear. When empty they bear an API key, if there are any.",
            live=True,
            secret=True,
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        About("Origins that browsers may ask from (CORS); * is every one. Empty refuses every preflight."),
    ] = ()
    allowed_methods: Annotated[tuple[str, ...], About("Methods that CORS allows.")] = ("*",)
    allowed_headers: Annotated[tuple[str, ...], About("Headers that CORS allows.")] = ("*",)
    allow_credentials: Annotated[bool, About("Let CORS requests carry credentials.")] = False
    allowed_hosts: Annotated[
        ReachedAs,
        About(
            "Names by which proxies and browsers reach this server: on a loopback address, /admin and the "
            "console refuse others; see docs/access.md."
        ),
    ] = ()
    requests_per_minute: Annotated[
        Count | None,
        About(
            "Generating requests that each key (or, without one, each address) may make; empty is no limit.",
            unit="requests",
            live=True,
        ),
    ] = None
    tokens_per_minute: Annotated[
        Count | None,
        About(
            "Prompt and reply tokens that each key (or address) may use; empty is no limit.",
            unit="tokens",
            live=True,
        ),
    ] = None

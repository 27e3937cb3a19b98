"""The listening socket and the life of the process."""

from dataclasses import dataclass

from config.fields import setting
from config.kinds import Duration
from config.rules import at_least, at_most, between, not_empty, not_negative, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The listening socket and the life of the process."""

    host: str = setting("0.0.0.0", help="Address to listen on.", rule=not_empty())
    port: int = setting(8000, help="TCP port to listen on.", rule=between(1, 65535))
    max_request_body_size_mb: int = setting(
        4, unit="MiB", help="Larger request bodies are answered with 413.", rule=between(1, 512)
    )
    startup_duration: Duration = setting(
        0.0, help="How long the server answers that it is not ready after its start.", rule=not_negative()
    )
    graceful_timeout: Duration = setting(
        30.0, help="How long running streams may go on after SIGTERM.", rule=not_negative()
    )
    read_timeout: Duration = setting(
        60.0, help="Time that a client has to deliver a whole request.", rule=positive()
    )
    write_timeout: Duration = setting(
        60.0, help="Time that a client may take no bytes before its stream is dropped.", rule=positive()
    )
    keep_alive_timeout: Duration = setting(
        75.0, help="How long an idle connection is kept open.", rule=not_negative()
    )
    worker_connections: int = setting(
        16384, unit="connections", help="Connections served at the same time.", rule=at_least(1)
    )
    data_parallel_size: int = setting(
        1,
        unit="ranks",
        help="Ranks of this server: each is a process of its own, on port + rank.",
        rule=between(1, 8),
    )
    data_parallel_rank: int | None = setting(
        None,
        help="Rank that this server plays alone, on its port as it is; data-parallel-size then only tells "
        "how many there are. Empty, or negative, plays all ranks.",
        rule=at_most(7),
    )
    pod_name: str = setting(
        "", env=("POD_NAME",), help="Sent as x-inference-pod, together with x-inference-port, when not empty."
    )
    pod_ip: str = setting(
        "",
        env=("POD_IP",),
        help="Address under which other servers reach this one; the host's name when empty.",
    )
    pod_namespace: str = setting(
        "", env=("POD_NAMESPACE",), help="Sent as x-inference-namespace when not empty."
    )
    server_dev_mode: bool = setting(
        False,
        env=("VLLM_SERVER_DEV_MODE",),
        help="Serve the development routes: sleep, wake_up, reset_prefix_cache, server_info and others.",
    )
    profiling: bool = setting(
        False, help="Serve start_profile and stop_profile, which do nothing and say that they did."
    )

    @property
    def rank(self) -> int | None:
        """The only rank that this server plays, or None when it plays all."""
        rank = self.data_parallel_rank
        return None if rank is None or rank < 0 else rank

    @property
    def ranks(self) -> range:
        """The ranks that this server plays, a process each."""
        return range(self.data_parallel_size) if self.rank is None else range(self.rank, self.rank + 1)

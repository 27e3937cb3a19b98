"""Settings of the supervisor of ranks with separate ports."""

from typing import Annotated

from msgspec import Meta

from config.declaration import About, Count, Port, Section

Seconds = Annotated[float, Meta(gt=0), About(unit="s")]
"""Seconds as a plain number, as in vLLM's options of the same names."""


class SupervisorSettings(Section, frozen=True, kw_only=True):
    """Supervisor of data-parallel ranks with separate ports."""

    data_parallel_supervisor_port: Port | None = None
    """Port of the supervisor, which serves /health, /ready, and /readyz to report the health of
    ranks that have separate ports. With the serve command, the default is 9256 if
    --data-parallel-multi-port-external-lb is set; in all other cases, there is no default."""
    dp_supervisor_probe_interval_s: Seconds = 5.0
    """Interval at which the supervisor probes each rank."""
    dp_supervisor_probe_timeout_s: Seconds = 5.0
    """Time that the supervisor waits for a rank to respond."""
    dp_supervisor_probe_failure_threshold: Count = 3
    """Number of consecutive failed probes of a rank after which the supervisor stops the server."""

"""Counters of transfers for one engine: vLLM has them for its NixlConnector."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Counter
    from app.core.base.metrics.recorder import Recorder


class Counters:
    """Counts nothing, for connectors without metrics."""

    def transfer_failed(self) -> None:
        """Counts a prompt that could not be read."""

    def notification_failed(self) -> None:
        """Counts a notification that did not arrive."""

    def expired(self) -> None:
        """Counts a lease that ended before its blocks were read."""

    def notified_late(self) -> None:
        """Counts a notification for blocks that are not held."""


class TransferCounters(Counters):
    """Counts what goes wrong between two engines."""

    def __init__(self, recorder: Recorder, model: str, rank: int) -> None:
        def counter(name: str) -> Counter:
            family = recorder.families[f"vllm:nixl_num_{name}_total"]
            return cast("Counter", family.labels(model_name=model, engine=str(rank)))

        self._failed_transfers = counter("failed_transfers")
        self._failed_notifications = counter("failed_notifications")
        self._expired = counter("kv_expired_reqs")
        self._late_notifications = counter("notifications_after_expiry")

    def transfer_failed(self) -> None:
        """Counts a prompt that could not be read."""
        self._failed_transfers.value += 1

    def notification_failed(self) -> None:
        """Counts a notification that did not arrive, which vLLM also counts as a transfer."""
        self._failed_notifications.value += 1
        self._failed_transfers.value += 1

    def expired(self) -> None:
        """Counts a lease that ended before its blocks were read."""
        self._expired.value += 1

    def notified_late(self) -> None:
        """Counts a notification for blocks that are not held."""
        self._late_notifications.value += 1

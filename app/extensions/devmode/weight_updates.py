"""Simulated updates of the model's weights by a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from app.core.api.weight_spans import Weights
from app.core.engine.errors import CommandFailedError

TENSOR_NAMES: Sequence[str] = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
"""Tensor names in checksums; every model has some of these tensors."""


class WeightUpdates:
    """Simulates updates of the weights of `model` on `devices`; requests continue meanwhile.

    `transfers` is true if vLLM's `--weight-transfer-config` is set. A method raises
    CommandFailedError where vLLM rejects the call.
    """

    def __init__(self, weights: Weights, model: str, devices: int, transfers: bool) -> None:
        self.weights = weights
        self.devices = devices
        self._model = model
        self._transfers = transfers
        self._connected = False
        self._updating = False
        self._content = "loaded"

    def connect(self) -> None:
        """Connects a trainer."""
        self._check_configured()
        self._connected = True

    def disconnect(self) -> None:
        """Disconnects the trainer."""
        if self._updating:
            raise CommandFailedError("The trainer cannot disconnect during a weight update.")
        self._connected = False

    def start(self) -> None:
        """Starts an update."""
        self._check_configured()
        if self._updating:
            raise CommandFailedError(
                "A weight update is already active; call finish_weight_update first."
            )
        self._updating = True

    def start_draft(self) -> None:
        """Always raises CommandFailedError: there is no draft model to update."""
        self._check_configured()
        raise CommandFailedError("The engine has no draft model to update.")

    def update(self) -> None:
        """Replaces weights; a failing call ends the update."""
        self._check_updating("update_weights")
        if not self._connected:
            self._updating = False
            raise CommandFailedError(
                "Weight transfer is not initialized; call init_weight_transfer_engine first."
            )
        self._content += " updated"
        self._content = blake2b(self._content.encode(), digest_size=8).hexdigest()

    def finish(self, version: str | None) -> None:
        """Ends an update; the weights get `version` unless it is None."""
        self._check_updating("finish_weight_update")
        self._updating = False
        if version is not None:
            self.weights.version = version

    def reset(self) -> None:
        """Sets all weights to zero."""
        self._content = "zero"

    def checksums(self) -> dict[str, str]:
        """Returns a digest for each tensor of each device.

        An update or a reset changes all digests.
        """
        return {
            f"dp0:pp0:pcp0:tp{device}:{name}": blake2b(
                f"{self._model} {device} {name} {self._content}".encode(), digest_size=32
            ).hexdigest()
            for device in range(self.devices)
            for name in TENSOR_NAMES
        }

    def _check_configured(self) -> None:
        if not self._transfers:
            raise CommandFailedError(
                "Weight transfer is not configured; set weight_transfer_config."
            )

    def _check_updating(self, name: str) -> None:
        self._check_configured()
        if not self._updating:
            raise CommandFailedError(
                f"No weight update is active; call start_weight_update before {name}."
            )

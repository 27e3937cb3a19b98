"""Simulated weight updates by a trainer: sessions, versions, checksums."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from app.engine.core.errors import CommandFailed

NAMES: Sequence[str] = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
"""Tensor names in checksums; every model has some of these tensors."""


class Weights:
    """Simulates updates of `model`'s weights on `devices`; `transfers` is vLLM's `--weight-transfer-config`.

    Raises CommandFailed only where vLLM refuses: requests go on during an update.
    """

    def __init__(self, model: str, devices: int, transfers: bool) -> None:
        self.version = "default"
        """Label of the weights, changed only by a trainer."""
        self.devices = devices
        self._model = model
        self._transfers = transfers
        self._connected = self._updating = False
        self._content = "loaded"
        """Digest that stands for the weight values."""

    def connect(self) -> None:
        self._check_configured()
        self._connected = True

    def disconnect(self) -> None:
        """Ends the connection to a trainer; without one nothing changes."""
        if self._updating:
            raise CommandFailed("A trainer cannot leave during a weight update.")
        self._connected = False

    def start(self) -> None:
        self._check_configured()
        if self._updating:
            raise CommandFailed("A weight update is active already: call finish_weight_update first.")
        self._updating = True

    def start_draft(self) -> None:
        """Refuses to update a draft model: there is none."""
        self._check_configured()
        raise CommandFailed("There is no draft model whose weights could be updated.")

    def update(self) -> None:
        """Takes weights; a failing call ends the update."""
        self._check_updating("update_weights")
        if not self._connected:
            self._updating = False
            raise CommandFailed("Weight transfer is not initialized: call init_weight_transfer_engine first.")
        self._content += " updated"
        self._content = blake2b(self._content.encode(), digest_size=8).hexdigest()

    def finish(self, version: str | None) -> None:
        """Ends an update; the weights get `version`, if given."""
        self._check_updating("finish_weight_update")
        self._updating = False
        self.version = self.version if version is None else version

    def reset(self) -> None:
        self._content = "zero"

    def checksums(self) -> dict[str, str]:
        """Returns a digest for each tensor of each device; an update or a reset changes all digests."""
        return {
            f"dp0:pp0:pcp0:tp{device}:{name}": blake2b(
                f"{self._model} {device} {name} {self._content}".encode(), digest_size=32
            ).hexdigest()
            for device in range(self.devices)
            for name in NAMES
        }

    def _check_configured(self) -> None:
        if not self._transfers:
            raise CommandFailed("Weight transfer is not configured: set weight_transfer_config.")

    def _check_updating(self, name: str) -> None:
        self._check_configured()
        if not self._updating:
            raise CommandFailed(f"No weight update is active: start_weight_update comes before {name}.")

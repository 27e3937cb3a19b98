"""A server whose engine is another process: that of `tests.extensions.llm.remote.engine`."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.raw_client import wait_until
from tests.hostile.waits import wait_for_status
from tests.running_server import ROOT, RunningServer, running_gunicorn

CONFIGURATION = Path(__file__).with_name("gunicorn.conf.py")
EMBEDDED = ROOT / "app" / "core" / "text" / "data"
SENTENCE = "The rain in Spain stays mainly in the plain."


@dataclass(frozen=True, slots=True)
class Peer:
    """The engine's folder, by which it is told what to do, and tells what it was asked."""

    folder: Path

    def says(self, text: str, pace_s: float = 0.0) -> None:
        """What the next replies are, and how long each token takes."""
        (self.folder / "text").write_text(text)
        self.talks_at(pace_s)

    def talks_at(self, pace_s: float) -> None:
        """How long each token takes from now on, also of replies that have begun."""
        fresh = self.folder / "pace.new"
        fresh.write_text(str(pace_s))
        fresh.rename(self.folder / "pace")

    def fails(self, error: str | None) -> None:
        """Every request ends with this error; None: no more."""
        file = self.folder / "error"
        file.unlink(missing_ok=True) if error is None else file.write_text(error)

    def wait_for_orders(self, count: int) -> None:
        """Waits until the engine has had exactly `count` orders."""
        wait_until(lambda: len(self.orders) == count)

    @property
    def orders(self) -> list[dict[str, Any]]:
        return [order for order in self._received() if order["type"] != "hello"]

    @property
    def greetings(self) -> int:
        return sum(order["type"] == "hello" for order in self._received())

    def _received(self) -> list[dict[str, Any]]:
        file = self.folder / "orders.jsonl"
        return [*map(json.loads, file.read_text().splitlines())] if file.exists() else []

    @property
    def last(self) -> dict[str, Any]:
        return next(order for order in reversed(self.orders) if order["type"] == "generate")

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in (self.folder / "pids").read_text().splitlines()]


def new_peer(folder: Path) -> Peer:
    """A folder with a tokenizer, as a model has one, and with something to say."""
    shutil.copytree(EMBEDDED, folder, dirs_exist_ok=True)
    peer = Peer(folder)
    peer.says(SENTENCE)
    return peer


@contextmanager
def served(peer: Peer, ports: int = 1, **settings: str) -> Iterator[RunningServer]:
    """A server with the engine of `peer`; `settings` as their variables are called, without SIM_."""
    named = {"engine": "llm", "model": str(peer.folder), "served_model_name": "tiny"} | settings
    env = {f"SIM_{name.upper()}": value for name, value in named.items()}
    extra = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(ROOT)}
    with running_gunicorn("-c", str(CONFIGURATION), env=env | extra, ports=ports) as server:
        for port in range(server.port, server.port + ports):
            wait_for_status(port, 200)
        yield server

"""Leases of held blocks, and the settings that turn them on."""

from functools import partial
from typing import cast

import pytest

from app.core.base.clock.timer_wheel import TimerWheel
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.settings import load
from app.extensions.handoff import Handoff, leases
from app.extensions.handoff.counters import TransferCounters
from app.extensions.handoff.leases import Leases
from app.extensions.handoff.messages import Done, Heartbeat, Read
from app.shared.virtual_clock import VirtualClock


class Holder:
    """Leases on a virtual clock, and the requests whose blocks were released."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        self.recorder = Recorder("m", 4096, {}, options=RecorderOptions(transfers=True))
        counters = TransferCounters(self.recorder, "m", 0)
        self.leases = Leases(TimerWheel(self.clock), self.clock.now, 3.0, counters)
        self.released: list[str] = []

    def hold(self, *names: str) -> None:
        for name in names:
            self.leases.hold(name, partial(self.released.append, name))

    def expired(self) -> int:
        return self.recorder.render().count('kv_expired_reqs_total{engine="0",model_name="m"} 1.0')


@pytest.fixture
def holder() -> Holder:
    return Holder()


def test_each_lease_of_blocks_expires_separately(holder: Holder) -> None:
    holder.hold("a")
    holder.clock.advance(1)
    holder.hold("b")
    holder.clock.advance(2.1)
    assert holder.released == ["a"]
    holder.clock.advance(1)
    assert holder.released == ["a", "b"]


def test_heartbeats_extend_leases_and_never_shorten_them(holder: Holder) -> None:
    holder.hold("a", "b")
    holder.leases.respond(Heartbeat(["a", "unknown"]))
    holder.clock.advance(2.9)
    assert holder.released == []
    holder.leases.respond(Heartbeat(["a"]))
    holder.clock.advance(1.5)
    assert holder.released == ["b"]
    holder.clock.advance(1)
    assert holder.released == ["b", "a"]


def test_leased_blocks_are_released_only_by_the_pod_that_read_them_first(holder: Holder) -> None:
    holder.hold("a")
    assert holder.leases.respond(Read("a", "first")) == ""
    assert holder.leases.respond(Read("a", "first")) == ""
    assert holder.leases.respond(Read("a", "second"))
    assert holder.leases.respond(Done("a", "second"))
    assert holder.released == []
    assert holder.leases.respond(Done("a", "first")) == ""
    assert holder.leases.respond(Done("a", "first"))
    assert holder.released == ["a"]
    assert len(holder.leases) == 0


def test_repeated_request_id_releases_the_earlier_blocks(holder: Holder) -> None:
    holder.hold("a", "a")
    assert holder.released == ["a"]
    assert len(holder.leases) == 1


def test_request_id_can_be_leased_again_during_the_release_of_blocks(
    holder: Holder,
) -> None:
    def release_first() -> None:
        holder.released.append("first")
        holder.leases.hold("a", partial(holder.released.append, "third"))

    holder.leases.hold("a", release_first)
    holder.leases.hold("a", partial(holder.released.append, "second"))
    assert holder.released == ["first", "second"]
    holder.clock.advance(4)
    assert holder.released == ["first", "second", "third"]


def test_new_lease_above_the_limit_ends_the_oldest_lease(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MAX_LEASES", 2)
    holder.hold("a", "b", "c")
    assert holder.released == ["a"]
    assert holder.expired()


def test_expiry_queue_stays_small_after_many_leases_are_released(holder: Holder) -> None:
    for number in range(10_000):
        holder.hold(str(number))
        holder.leases.respond(Done(str(number), "reader"))
    assert len(cast("list[object]", vars(holder.leases)["_ends"])) < 100


@pytest.mark.parametrize(
    ("flags", "is_on"),
    [
        ([], False),
        (["--kv-connector", "nixl"], True),
        (["--kv-connector", "offloading"], False),
        (["--kv-connector", "nixl", "--task", "embed"], False),
    ],
    ids=str,
)
def test_kv_transfers_are_enabled_by_the_nixl_connector(flags: list[str], is_on: bool) -> None:
    settings = load(["--force-dummy-tokenizer", *flags], {})
    assert Handoff.is_enabled(settings) == is_on

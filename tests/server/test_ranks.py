"""Which rank a process plays, where it is reached, and which one a new worker becomes."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.serving.gunicorn import handover, ranks
from config import Settings
from config.settings import ServerSettings, TlsSettings

FOUR = ServerSettings(port=8000, data_parallel_size=4)
ALONE = replace(FOUR, data_parallel_rank=3)


def test_every_rank_has_the_port_after_the_one_before() -> None:
    assert ranks.addresses(replace(FOUR, host="10.0.0.1")) == [
        "10.0.0.1:8000",
        "10.0.0.1:8001",
        "10.0.0.1:8002",
        "10.0.0.1:8003",
    ]
    assert ranks.addresses(ServerSettings(host="::1")) == ["[::1]:8000"]
    assert ranks.served_by(FOUR, 2).port == 8002


def test_a_rank_alone_has_the_port_as_it_is() -> None:
    assert ranks.count(ALONE) == 1
    assert ranks.addresses(ALONE) == ["0.0.0.0:8000"]
    assert ranks.served_by(ALONE, 3).port == 8000


def test_the_environment_tells_the_rank_unless_the_settings_do() -> None:
    assert ranks.rank_of(FOUR, {}) == 0
    assert ranks.rank_of(FOUR, {ranks.RANK: "2"}) == 2
    assert ranks.rank_of(ALONE, {}) == 3
    assert ranks.rank_of(replace(FOUR, data_parallel_rank=-1), {}) == 0


def test_siblings_are_reached_over_the_loopback_address() -> None:
    assert ranks.siblings(Settings(server=replace(FOUR, data_parallel_size=2))) == [
        (0, "http://127.0.0.1:8000"),
        (1, "http://127.0.0.1:8001"),
    ]
    secure = Settings(server=replace(ALONE, host="::"), tls=TlsSettings(self_signed_certs=True))
    assert ranks.siblings(secure) == [(3, "https://[::1]:8000")]


@contextmanager
def workers(places: list[tuple[int, bool]]) -> Iterator[list[Any]]:
    """Workers of these places; True: it has been replaced."""
    with ExitStack() as files:
        made = []
        for place, replaced in places:
            worker = SimpleNamespace(place=place, tmp=files.enter_context(tempfile.TemporaryFile()))
            if replaced:
                handover.note(worker, handover.REPLACED)
            made.append(worker)
        yield made


@given(size=st.integers(1, 8), data=st.data())
def test_a_new_worker_takes_a_place_that_nobody_keeps(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.booleans()), max_size=12))
    kept = Counter(place for place, replaced in places if not replaced)
    with workers(places) as present:
        place = ranks.vacant(present, size)
    assert kept[place] == min(kept[other] for other in range(size))


def test_a_note_leaves_the_time_of_the_heartbeat() -> None:
    with workers([(0, False)]) as [worker]:
        os.utime(worker.tmp.fileno(), (7, 7))
        assert not handover.is_serving(worker)
        handover.note(worker, handover.SERVING)
        handover.note(worker, handover.ENDING)
        assert handover.is_serving(worker) and handover.is_ending(worker) and not handover.is_replaced(worker)
        assert os.fstat(worker.tmp.fileno()).st_mtime == 7

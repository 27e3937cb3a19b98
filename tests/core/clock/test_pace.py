"""Work on many items of a client lets other greenlets run in between."""

import time

import gevent

from app.core.base.clock.pause import MAX_WORK_S, paced


def test_paced_items_are_all_items_in_order() -> None:
    assert list(paced(range(5))) == [0, 1, 2, 3, 4]


def test_other_greenlets_run_between_paced_items() -> None:
    started_at: list[int] = []
    items_done = 0
    other = gevent.spawn(lambda: started_at.append(items_done))
    for _ in paced(range(5)):
        time.sleep(2 * MAX_WORK_S)  # work: pytest's sockets and sleeps are not patched
        items_done += 1
    other.join()
    assert started_at == [1], "the other greenlet runs after the first long item"

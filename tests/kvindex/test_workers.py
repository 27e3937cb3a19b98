"""Threads for work that may never end."""

from __future__ import annotations

import threading
import time

import pytest

from app.kvindex.tokenizers import Workers, WorkersBusy


def test_work_gives_what_it_returns_or_raises() -> None:
    workers = Workers(2)
    assert workers.call(lambda: 5, 10) == 5
    with pytest.raises(KeyError):
        workers.call(lambda: {}["x"], 10)
    workers.close()


def test_one_thread_does_what_comes_one_after_the_other() -> None:
    workers = Workers(3)
    threads = set()
    for _ in range(5):
        threads.add(workers.call(threading.get_ident, 10))
        while workers._unfinished:
            time.sleep(0.001)
    assert len(threads) == 1
    workers.close()


def test_work_that_never_ends_is_given_up_and_others_go_on() -> None:
    workers, end = Workers(2), threading.Event()
    with pytest.raises(TimeoutError):
        workers.call(end.wait, 0.01)
    for _ in range(5):
        assert workers.call(lambda: 1, 10) == 1
    end.set()
    workers.close()


def test_work_that_never_ends_does_not_keep_the_process_from_ending() -> None:
    workers = Workers(1)
    assert workers.call(lambda: threading.current_thread().daemon, 10)
    workers.close()


def test_when_all_are_stuck_calls_end_in_time_and_too_many_are_refused() -> None:
    workers, end = Workers(1, most_waiting=2), threading.Event()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            workers.call(end.wait, 0.05)
    with pytest.raises(WorkersBusy):
        workers.call(end.wait, 0.05)
    end.set()
    workers.close()


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    workers, end, begun = Workers(1), threading.Event(), []
    with pytest.raises(TimeoutError):
        workers.call(end.wait, 0.01)
    with pytest.raises(TimeoutError):
        workers.call(lambda: begun.append(1), 0.01)
    end.set()
    assert workers.call(lambda: 1, 10) == 1
    assert begun == []
    workers.close()


def test_there_are_no_more_threads_than_asked_for() -> None:
    workers, end = Workers(3), threading.Event()
    before = threading.active_count()
    callers = [threading.Thread(target=lambda: workers.call(end.wait, 10)) for _ in range(10)]
    for caller in callers:
        caller.start()
    while workers._unfinished < 10:
        time.sleep(0.005)
    assert threading.active_count() - before <= 13
    end.set()
    for caller in callers:
        caller.join()
    workers.close()


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError):
        Workers(0)

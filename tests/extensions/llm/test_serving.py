"""What the process does, turn by turn:

workers that stall, engines that fail, calm when there is no work.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
import zmq

from app.core.engine.choice_request import TextForm
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.errors import RequestError
from app.extensions.llm.heartbeat import Heartbeat
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.service import bind
from app.extensions.llm.serving import IDLE_SECONDS, EngineService
from tests.core.kvcache.caches import check
from tests.extensions.llm.process import Worker
from tests.extensions.llm.tiny import generate, make_engine, prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


class Turns:
    """A service, its engine and its address; nothing happens but in `turn`."""

    def __init__(self, folder: Path, endpoint: str, queued_messages: int) -> None:
        self.endpoint, self.now_s = endpoint, 100.0
        self.engine: LLMEngine = make_engine(folder)
        self.socket = bind(zmq.Context.instance(), endpoint, queued_messages)
        now, files = (lambda: self.now_s), (lambda: load_checkpoint(folder))
        heart = Heartbeat(endpoint, now=now)
        self.service = EngineService(self.engine, files, self.socket, None, heart, now=now)

    def turn(self) -> None:
        self.service.run_once(0.01)

    def until(self, holds: Callable[[], bool], *workers: Worker) -> None:
        for _ in range(20_000):
            if holds():
                return
            self.now_s += 0.05
            self.turn()
            for worker in workers:
                worker.hear(0)
        raise AssertionError("it did not come to that")


@contextmanager
def serving(folder: Path, queued_messages: int = 1000) -> Iterator[Turns]:
    with TemporaryDirectory() as short:
        turns = Turns(folder, f"ipc://{short}/e", queued_messages)
        with turns.socket:
            yield turns


def test_a_worker_that_does_not_read_holds_up_nobody(folder: Path) -> None:
    """Its choices end; it is told so when it reads again, and may order more."""
    with (
        serving(folder, queued_messages=20) as turns,
        Worker(turns.endpoint, queued_messages=1) as stalled,
        Worker(turns.endpoint) as other,
    ):
        for key in range(3):
            stalled.generate(key, [1] * 20, 450, logprobs=300)
        other.generate(1, [2] * 20, 450)
        turns.until(lambda: other.is_over(1), other)
        assert len(other.whole(1)[0]) == 450
        assert turns.engine.cache.pool.usage == 0
        turns.until(lambda: all(stalled.is_over(key) for key in range(3)), stalled, other)
        for key in range(3):
            assert stalled.said[key][-1].finish == "error" and len(stalled.whole(key)[0]) < 450
        stalled.generate(10, [1], 5)
        turns.until(lambda: stalled.is_over(10), stalled, other)
        assert len(stalled.whole(10)[0]) == 5


def test_a_step_that_fails_ends_choices_and_the_service(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        worker.generate(1, [1] * 20, 100)
        turns.until(lambda: len(worker.said.get(1, [])) > 3, worker)
        del turns.engine.runner.model  # stands for whatever may go wrong in there
        with pytest.raises(AttributeError):
            turns.service.run()
        last = worker.wait(1)[0]
        assert last.finish == "error" and last.error and not last.is_refused


def test_while_a_form_is_compiled_others_are_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And other forms, those behind it in the line, and one that is aborted meanwhile."""
    may_end, begun = Event(), []

    def compile(engine: LLMEngine, text: TextForm) -> None:
        begun.append(text.regex)
        assert text.regex == "quick" or may_end.wait(20)
        raise RequestError("It is no form.")

    monkeypatch.setattr(LLMEngine, "compile", compile)
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        for key, regex in enumerate(("first", "quick", "second", "left", "last")):
            worker.generate(key, [1], 5, form=TextForm(regex=regex))
        worker.generate(5, [1], 5)
        turns.until(lambda: worker.is_over(5) and worker.is_over(1), worker)
        worker.abort(3)
        turns.until(lambda: sorted(begun) == ["first", "quick", "second"], worker)
        turns.turn()
        may_end.set()
        turns.until(lambda: all(worker.is_over(key) for key in (0, 2, 4)), worker)
        assert begun[3:] == ["last"]
        assert worker.said[0][0].is_refused and worker.said[0][0].error == "It is no form."
        assert 3 not in worker.said and len(worker.whole(5)[0]) == 5


def test_it_gives_a_sign_of_life_before_each_layer_and_is_heard_now_and_then(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        beats: list[float] = []
        turns.engine.pacer.on_layer = lambda: beats.append(turns.now_s)
        worker.generate(1, [1], 3)
        turns.until(lambda: worker.is_over(1), worker)
        assert len(beats) == 3 * turns.engine.runner.config.num_layers
        loads_before = len(worker.loads)
        for _ in range(5):
            turns.turn()
            worker.hear(0.02)
        assert len(worker.loads) == loads_before
        turns.now_s += IDLE_SECONDS
        turns.until(lambda: len(worker.loads) == loads_before + 1, worker)


def test_a_worker_that_left_while_nothing_ran_is_forgotten(folder: Path) -> None:
    with serving(folder) as turns:
        with Worker(turns.endpoint) as worker:
            number = worker.ask("pause")
            worker.generate(1, [1], 2)
            turns.until(lambda: number in worker.answers, worker)
            assert len(turns.engine.scheduler.waiting.members) == 1
        turns.until(lambda: not turns.engine.scheduler.waiting.members)


def test_sleep_gives_memory_back(folder: Path) -> None:
    wanted = prompts(2)
    with serving(folder) as turns:
        engine, service = turns.engine, turns.service
        expected = generate(engine, wanted)
        layers = [
            weakref.ref(layer)
            for layer in (engine.runner.model.embedding, *engine.runner.store.layers)
        ]
        layers.append(weakref.ref(engine.runner.model.layers[0]))
        service.sleep(1)
        assert [layer() for layer in layers] == [None] * len(layers)
        service.sleep(2)
        assert service.sleep_level == 2
        service.wake_up(None)
        assert generate(engine, wanted) == expected
        check(engine.cache)


def test_the_load_tells_workers_that_a_pause_refuses_requests(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        for name, refuse, expected in (
            ("pause", True, True),
            ("sleep", False, True),
            ("pause", False, False),
            ("pause", True, True),
            ("resume", False, False),
        ):
            number = worker.ask(name, refuse=refuse)
            turns.until(lambda number=number: number in worker.answers, worker)
            assert worker.loads[-1].refuses_requests is expected

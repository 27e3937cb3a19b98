"""What the process does, turn by turn:

workers that stall, engines that fail, calm when there is no work.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
import zmq

from app.core.engine.choice_request import TextForm
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.errors import RequestError
from app.extensions.llm.heartbeat import Heartbeat
from app.extensions.llm.input_processor import InputProcessor
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.service import bind
from app.extensions.llm.serving import HOLD_SECONDS, IDLE_SECONDS, EngineService
from tests.core.kvcache.caches import check
from tests.extensions.llm.process import Worker
from tests.extensions.llm.tiny import generate, make_engine, prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


class Turns:
    """A service, its engine and its address; nothing happens but in `turn`."""

    def __init__(self, folder: Path, endpoint: str, queued_messages: int) -> None:
        self.endpoint = endpoint
        self.now_s = 100.0
        self.engine: LLMEngine = make_engine(folder)
        self.socket = bind(zmq.Context.instance(), endpoint, queued_messages)
        self.service = EngineService(
            self.engine,
            partial(load_checkpoint, folder),
            self.socket,
            None,
            Heartbeat(endpoint, now=self.now),
            now=self.now,
        )

    def now(self) -> float:
        return self.now_s

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

    def until_over(self, worker: Worker, *keys: int, others: Sequence[Worker] = ()) -> None:
        """Takes turns until the choices of a worker are over."""
        self.until(lambda: all(worker.is_over(key) for key in keys), worker, *others)

    def until_answered(self, worker: Worker, number: int) -> None:
        """Takes turns until a command of the worker has its answer."""
        self.until(lambda: number in worker.answers, worker)


@contextmanager
def serving(folder: Path, queued_messages: int = 1000) -> Iterator[Turns]:
    with TemporaryDirectory() as short:
        turns = Turns(folder, f"ipc://{short}/e", queued_messages)
        with turns.socket:
            yield turns


def hear_turn(turns: Turns, worker: Worker) -> None:
    """Takes a turn, while the clock stands still, and receives its message."""
    turns.turn()
    worker.hear(0.02)


def test_slow_worker_delays_no_other_worker(folder: Path) -> None:
    """Its choices end; it is told so when it reads again, and may order more."""
    with (
        serving(folder, queued_messages=20) as turns,
        Worker(turns.endpoint, queued_messages=1) as stalled,
        Worker(turns.endpoint) as other,
    ):
        for key in range(3):
            stalled.generate(key, [1] * 20, 450, logprobs=300)
        other.generate(1, [2] * 20, 450)
        turns.until_over(other, 1)
        assert len(other.whole(1)[0]) == 450
        assert turns.engine.cache.pool.usage == 0
        turns.until_over(stalled, 0, 1, 2, others=[other])
        for key in range(3):
            assert stalled.outputs[key][-1].finish == "error" and len(stalled.whole(key)[0]) < 450
        stalled.generate(10, [1], 5)
        turns.until_over(stalled, 10, others=[other])
        assert len(stalled.whole(10)[0]) == 5


def test_awaited_reply_wakes_its_worker_for_its_first_and_last_outputs_only(folder: Path) -> None:
    """The message with the last output has all others, and the load after each step."""
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        worker.generate(1, [1] * 20, 12)
        while not worker.is_over(1):
            hear_turn(turns, worker)
        streamed = [output.ids for output in worker.outputs.pop(1)]
        assert worker.messages == 12
        assert turns.engine.cache.reset()
        worker.messages = 0
        worker.loads.clear()
        worker.generate(1, [1] * 20, 12, is_awaited=True)
        while not worker.is_over(1):
            hear_turn(turns, worker)
        assert worker.messages == 2
        assert [output.ids for output in worker.outputs[1]] == streamed
        assert [load.step_tokens for load in worker.loads] == [21] + [1] * 11


def test_outputs_of_an_awaited_reply_wait_for_a_short_time_only(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        worker.generate(1, [1] * 20, 100, is_awaited=True)
        while 1 not in worker.outputs:
            hear_turn(turns, worker)
        messages = []
        for _ in range(6):
            turns.now_s += 0.6 * HOLD_SECONDS
            hear_turn(turns, worker)
            messages.append(worker.messages)
        assert messages == [1, 2, 2, 3, 3, 4]


def test_stream_beside_an_awaited_reply_gets_each_output_at_once(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        worker.generate(1, [1] * 20, 12, is_awaited=True)
        worker.generate(2, [2] * 20, 12)
        while not worker.is_over(1) or not worker.is_over(2):
            hear_turn(turns, worker)
        assert worker.messages == 12
        assert len(worker.whole(1)[0]) == len(worker.whole(2)[0]) == 12


def test_failing_step_ends_all_choices_and_the_service(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        worker.generate(1, [1] * 20, 100)
        turns.until(lambda: len(worker.outputs.get(1, [])) > 3, worker)
        del turns.engine.runner.model  # stands for whatever may go wrong in there
        with pytest.raises(AttributeError):
            turns.service.run()
        last = worker.wait(1)[0]
        assert last.finish == "error" and last.error and not last.is_refused


def test_compiling_a_grammar_does_not_delay_other_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And other forms, those behind it in the line, and one that is aborted meanwhile."""
    may_end = Event()
    begun = []

    def compile(inputs: InputProcessor, text: TextForm) -> None:
        begun.append(text.regex)
        assert text.regex == "quick" or may_end.wait(20)
        raise RequestError("It is no form.")

    monkeypatch.setattr(InputProcessor, "compile", compile)
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        for key, regex in enumerate(("first", "quick", "second", "left", "last")):
            worker.generate(key, [1], 5, form=TextForm(regex=regex))
        worker.generate(5, [1], 5)
        turns.until_over(worker, 5, 1)
        worker.abort(3)
        turns.until(lambda: sorted(begun) == ["first", "quick", "second"], worker)
        turns.turn()
        may_end.set()
        turns.until_over(worker, 0, 2, 4)
        assert begun[3:] == ["last"]
        assert worker.outputs[0][0].is_refused and worker.outputs[0][0].error == "It is no form."
        assert 3 not in worker.outputs and len(worker.whole(5)[0]) == 5


def test_engine_sends_a_heartbeat_per_layer_and_reports_load_while_idle(folder: Path) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        beats: list[float] = []
        turns.engine.pacer.on_layer = lambda: beats.append(turns.now_s)
        worker.generate(1, [1], 3)
        turns.until_over(worker, 1)
        assert len(beats) == 3 * turns.engine.runner.config.num_layers
        loads_before = len(worker.loads)
        for _ in range(5):
            turns.turn()
            worker.hear(0.02)
        assert len(worker.loads) == loads_before
        turns.now_s += IDLE_SECONDS
        turns.until(lambda: len(worker.loads) == loads_before + 1, worker)


def test_worker_that_disconnected_while_idle_is_forgotten(folder: Path) -> None:
    with serving(folder) as turns:
        with Worker(turns.endpoint) as worker:
            number = worker.ask("pause")
            worker.generate(1, [1], 2)
            turns.until_answered(worker, number)
            assert len(turns.engine.scheduler.waiting.members) == 1
        turns.until(lambda: not turns.engine.scheduler.waiting.members)


def test_sleep_releases_the_memory_of_weights_and_kv_cache(folder: Path) -> None:
    wanted = prompts(2)
    with serving(folder) as turns:
        engine = turns.engine
        service = turns.service
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


def test_reported_load_says_whether_a_paused_engine_rejects_requests(
    folder: Path,
) -> None:
    with serving(folder) as turns, Worker(turns.endpoint) as worker:
        for name, refuse, expected in (
            ("pause", True, True),
            ("sleep", False, True),
            ("pause", False, False),
            ("pause", True, True),
            ("resume", False, False),
        ):
            number = worker.ask(name, refuse=refuse)
            turns.until_answered(worker, number)
            assert worker.loads[-1].refuses_requests is expected

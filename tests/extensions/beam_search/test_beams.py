"""Beams come whole, and each of their steps is a request of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import gevent
import pytest
from gevent.event import Event

from app.core.engine.engine import Engine
from app.core.engine.errors import EnginePausedError, RequestRejectedError
from app.core.engine.lifecycle import Lifecycle
from app.core.engine.outputs import Emit, Failed, Started
from app.core.engine.request import EngineRequest
from app.core.engine.sequence import Handle
from app.extensions.beam_search.search import search
from tests.core.engine.harness import PROFILE, Harness, embedded_tokenizer


def run_search(engine: Engine, requests: Sequence[EngineRequest], emit: Emit) -> Handle:
    return search(engine, embedded_tokenizer(), requests, emit)


def searching(**fields: Any) -> Harness:
    return Harness(search=run_search, **fields)


def beams(harness: Harness, choices: int = 2, **fields: Any) -> None:
    asked = {
        "prompt_ids": list(range(9)),
        "limited": True,
        "max_tokens": 4,
        "ignore_eos": True,
        **fields,
    }
    harness.handle = harness.ask(choices=choices, beams=True, **asked)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fields", [{}, {"profile": PROFILE}, {"time_to_first_token": 1.0}])
def test_beam_is_emitted_as_one_output(fields: dict[str, Any]) -> None:
    harness = searching(mode="random", **fields)
    beams(harness, logprobs=2)
    harness.clock.advance(60)
    for index in range(2):
        assert [isinstance(event, Started) for event in harness.outputs(index=index)] == [
            True,
            False,
        ]
        [beam] = harness.tokens(index=index)
        assert (len(beam.ids), len(beam.texts), len(beam.logprobs or ())) == (4, 1, 4)
        assert beam.finish is not None and beam.finish.reason == "length"
    assert harness.is_idle()


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.0}, {"seed": 5}, {"mode": "echo"}, {"max_tokens": 1}]
)
def test_distinct_beams_are_returned_in_order_of_likelihood(
    fields: dict[str, Any],
) -> None:
    harness = searching(mode=fields.get("mode", "random"))
    sampling = {name: value for name, value in fields.items() if name != "mode"}
    beams(harness, choices=9, logprobs=3, **sampling)
    harness.clock.advance(60)
    replies = [harness.tokens(index=index)[0] for index in range(9)]
    texts = ["".join(reply.texts) for reply in replies]
    sums = [round(sum(entry.logprob for entry in reply.logprobs or ()), 6) for reply in replies]
    assert len(set(texts)) == 9 and sums == sorted(sums, reverse=True) and sums[0] > sums[1]
    for reply in replies:
        entries = list(reply.logprobs or ())
        assert [entry.token_id for entry in entries] == list(reply.ids)
        assert "".join(entry.token for entry in entries) == "".join(reply.texts)
        for entry in entries:  # the likeliest three, or the token of a beam from farther back
            ranked = [logprob for _, _, logprob in entry.top]
            assert len(ranked) == 3 and ranked == sorted(ranked, reverse=True)
            chosen = [logprob for token, _, logprob in entry.top if token == entry.token_id]
            assert chosen in ([entry.logprob], []) and (chosen or entry.rank > 3)
            assert entry.logprob == pytest.approx(ranked[0] - 0.5 * (entry.rank - 1))


@pytest.mark.parametrize(("penalty", "is_longest_first"), [(0.0, False), (5.0, True)])
def test_beams_of_several_lengths_come_in_the_order_of_their_length_penalty(
    penalty: float, is_longest_first: bool
) -> None:
    harness = searching(mode="random", seed=1)
    sampling = {"limited": False, "max_tokens": 900, "ignore_eos": False}
    beams(harness, choices=5, reasoning=True, length_penalty=penalty, **sampling)
    harness.clock.advance(600)
    lengths = [sum(len(part.ids) for part in harness.tokens(index=index)) for index in range(5)]
    assert len(set(lengths)) > 2
    assert lengths == sorted(lengths, reverse=is_longest_first)


def test_prompt_that_is_sent_twice_gets_the_same_beams_twice() -> None:
    harness = searching(mode="random", seed=1)
    for _ in range(2):
        beams(harness)
        harness.clock.advance(60)
    texts = ["".join(event.texts) for event in harness.tokens()]
    assert len(texts) == 2 and texts[0] == texts[1]


def test_each_step_of_a_beam_counts_as_a_request_of_one_token() -> None:
    harness = searching(mode="random")
    beams(harness)
    harness.clock.advance(60)
    requests = 1 + 2 * 3
    assert harness.metric("request_success_total", finished_reason="length") == requests
    assert harness.metric("generation_tokens_total") == requests
    assert harness.metric("prompt_tokens_total") == 9 + 2 * (10 + 11 + 12)
    assert harness.metric("request_params_max_tokens_sum") == requests
    assert harness.metric("request_params_n_sum") == requests


def test_beam_search_of_zero_tokens_emits_one_empty_beam() -> None:
    harness = searching(mode="random")
    beams(harness, choices=1, max_tokens=0)
    harness.clock.advance(60)
    [beam] = harness.tokens()
    assert (beam.ids, beam.finish and beam.finish.reason) == ((), "length")
    assert harness.metric("generation_tokens_total") == 0 and harness.is_idle()


def test_stop_reason_of_a_beam_is_the_end_of_text_token() -> None:
    harness = searching(mode="echo")
    beams(harness, choices=1, echo_text="hi", max_tokens=9, ignore_eos=False)
    harness.clock.advance(60)
    [beam] = harness.tokens()
    assert "".join(beam.texts) == "hi" and beam.finish is not None
    assert (beam.finish.reason, beam.finish.stop_reason) == ("stop", 0) and 0 not in beam.ids


def test_interrupted_beams_report_an_abort_but_aborted_beams_emit_nothing() -> None:
    harness = searching(mode="random", time_to_first_token=1.0)
    beams(harness)
    harness.clock.advance(1.5)
    harness.handle.abort()  # type: ignore[attr-defined]
    harness.clock.advance(60)
    assert harness.events == [] and harness.is_idle()
    beams(harness)
    harness.clock.advance(1.5)
    assert harness.engine.interrupt() > 0
    harness.clock.advance(60)
    assert harness.finish(index=0) == harness.finish(index=1) == "abort" and harness.is_idle()


def test_other_greenlets_run_during_a_step_of_many_beams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = searching(mode="random")
    run, soon, submitted = harness.engine.run, harness.engine.wheel.call_soon, [0]

    def slow_run(*arguments: Any) -> Any:
        harness.clock._now += 0.003  # what a long prompt costs
        submitted[-1] += 1
        return run(*arguments)

    def call_soon(work: Callable[[], None]) -> None:
        submitted.append(0)
        soon(work)

    monkeypatch.setattr(harness.engine, "run", slow_run)
    monkeypatch.setattr(harness.engine.wheel, "call_soon", call_soon)
    beams(harness, choices=10)
    harness.clock.advance(60)
    assert max(submitted) == 2 and sum(submitted) == 1 + 10 * 3
    assert len(harness.tokens(index=9)) == 1 and harness.is_idle()


def test_pause_in_wait_mode_rejects_the_next_step_of_a_beam_search() -> None:
    harness = searching(slots=1, time_to_first_token=0.25, inter_token_latency=0.25)
    life = Lifecycle(harness.engine, harness.recorder)
    harness.ask("beams", beams=True)
    harness.clock.advance(0.3)
    waiting = gevent.spawn(life.pause, "wait", Event())
    gevent.sleep()
    harness.clock.advance(5)
    waiting.get(timeout=5)
    [(_, event)] = harness.events
    assert isinstance(event, Failed)
    assert isinstance(event.error, EnginePausedError)


def test_beam_search_is_rejected_if_its_app_extension_is_missing() -> None:
    with pytest.raises(RequestRejectedError, match="without the extension 'beam_search'"):
        beams(Harness(mode="random"))

"""Six prepared accidents, each explained in both timings: `requests` and `steps`."""

from random import Random
from typing import Any

import msgspec
import pytest

from app.extensions.explanation.explanation import Explanation
from config.settings import StepSettings
from tests.extensions.explanation.explained import Explained, quick_profile

SLOW = {"time_to_first_token": 1.0, "inter_token_latency": 0.1}
both_timings = pytest.mark.parametrize("timing", ["requests", "steps"])


def engine(timing: str, budget: int = 8192, **options: Any) -> Explained:
    if timing == "requests":
        return Explained(**{**SLOW, **options})
    steps = StepSettings(timing="steps", max_num_batched_tokens=budget)
    return Explained(profile=quick_profile(), sections={"steps": steps}, **options)


def why(explained: Explained, request_id: str) -> Explanation:
    """The explanation of a request with one choice, whose phases cover its time without a gap."""
    choice = explained.why(request_id)
    assert msgspec.json.decode(msgspec.json.encode(choice), type=Explanation) == choice
    moments = [0.0, *(moment for phase in choice.phases for moment in (phase.from_ms, phase.to_ms))]
    ends = [*moments, choice.total_ms]
    assert ends[::2] == pytest.approx(ends[1::2], abs=1.5)
    return choice


def waited(choice: Explanation, cause: str) -> float:
    """Seconds in the queue for one cause."""
    return (
        sum(phase.to_ms - phase.from_ms for phase in choice.phases if phase.cause == cause) / 1000
    )


@both_timings
def test_explanation_of_an_adapter_wait_names_the_loaded_adapters(
    timing: str,
) -> None:
    explained = engine(timing, slots=4, adapters=("chat", "sql", "new"), max_loras=2)
    for name in ("chat", "sql"):
        explained.ask(name, adapter=name, max_tokens=200)
    explained.ask("late", adapter="new")
    explained.ask("base")
    explained.clock.advance(1.0)
    assert why(explained, "late").status == "waiting"
    assert "(so far)." in why(explained, "late").sentence
    explained.clock.advance(100)
    late = why(explained, "late")
    assert (
        late.sentence.startswith("Waited ")
        and "for an adapter slot: 2 of 2 held by chat, sql" in late.sentence
    )
    assert waited(late, "adapter") == pytest.approx(late.total_ms / 1000, rel=0.1)
    assert not waited(why(explained, "base"), "adapter")


@both_timings
def test_explanation_of_a_block_wait_states_how_many_blocks_are_needed(
    timing: str,
) -> None:
    explained = engine(timing, slots=4, blocks=40)
    explained.ask("first", prompt_ids=list(range(250)), max_tokens=30)
    explained.clock.advance(0.1)
    explained.ask("late", prompt_ids=list(range(1000, 1200)))
    explained.clock.advance(100)
    late = why(explained, "late")
    assert "for KV blocks: the next request needs 25 of 39, and fewer are free" in late.sentence
    assert waited(late, "blocks") > 0.6 * late.total_ms / 1000


@both_timings
def test_explanation_names_the_long_prompt_that_delays_a_request(timing: str) -> None:
    """Without steps it holds the only place, in steps it takes their budget."""
    options = {"slots": 1, "time_to_first_token": 0, "prefill_time_per_token": 0.001}
    explained = engine(timing, budget=2048, **(options if timing == "requests" else {}))
    explained.ask("long", prompt_ids=list(range(20_000)), max_tokens=3)
    explained.clock.advance(0.02)
    explained.ask("late", max_tokens=3)
    explained.clock.advance(100)
    late, cause = why(explained, "late"), "places" if timing == "requests" else "budget"
    assert "the prompt of long (20,000 tokens)" in late.sentence
    assert waited(late, cause) > 0.6 * late.total_ms / 1000
    if timing == "steps":
        (prefill,) = (phase for phase in why(explained, "long").phases if phase.phase == "prefill")
        assert [tokens for _, _, tokens in prefill.chunks] == [2048] * 9 + [20_000 - 9 * 2048]
        assert ["long", 2048] in [
            list(prompt) for step in why(explained, "long").longest_steps for prompt in step.prompts
        ]


@both_timings
def test_explanation_states_how_many_prioritized_requests_went_first(
    timing: str,
) -> None:
    explained = engine(timing, slots=1, by_priority=True)
    explained.ask("first", max_tokens=20)
    explained.clock.advance(0.05)
    explained.ask("low", priority=5)
    for name in ("high", "higher"):
        explained.clock.advance(0.05)
        explained.ask(name, max_tokens=40)
    explained.clock.advance(100)
    low = why(explained, "low")
    assert (
        "behind higher priority: 2 requests went first, for a slot too: 1 of 1 taken"
        in low.sentence
    )
    assert waited(low, "priority") > waited(low, "places") > 0
    assert not waited(why(explained, "higher"), "priority")


@both_timings
def test_explanation_of_a_wait_for_a_kv_transfer_states_the_duration(timing: str) -> None:
    explained = engine(timing, slots=2, blocks=100, kv_cache_transfer_latency=2.0)
    explained.ask("moved", prompt_ids=list(range(60)), remote_prefill=True)
    explained.clock.advance(100)
    moved = why(explained, "moved")
    assert moved.sentence.startswith(
        "Waited 2.0 s for the KV cache of its prefill on another engine"
    )
    (transfer,) = (phase for phase in moved.phases if phase.phase == "transfer")
    assert transfer.to_ms - transfer.from_ms == pytest.approx(2000, abs=20)


@pytest.mark.parametrize(
    ("first", "reason"), [("high", "held most blocks"), ("low", "needed its blocks")]
)
def test_explanation_of_a_preemption_names_the_preempting_request(first: str, reason: str) -> None:
    explained = engine("steps", slots=4, blocks=40, by_priority=True)
    asks = {"low": (list(range(140)), 1), "high": (list(range(1000, 1140)), 0)}
    for name in sorted(asks, key=lambda name: name != first):
        explained.ask(name, prompt_ids=asks[name][0], max_tokens=100, priority=asks[name][1])
        explained.clock.advance(0.05)
    explained.clock.advance(100)
    low = why(explained, "low")
    assert low.preemptions == 1 and f"as KV blocks had run out: high {reason}" in low.sentence
    assert [explained.phase for explained in low.phases][-3:] == ["decode", "preempted", "decode"]


def test_explanation_of_a_slow_decode_names_the_interfering_prompt() -> None:
    explained = engine("steps", slots=4)
    explained.ask("short", max_tokens=60)
    explained.clock.advance(0.05)
    explained.ask("long", prompt_ids=list(range(16_000)))
    explained.clock.advance(100)
    assert (
        "of it in steps with other prompts: 7,809 tokens of the prompt of long"
        in why(explained, "short").sentence
    )


@both_timings
def test_explanation_of_a_delay_by_a_fault_states_the_duration(timing: str) -> None:
    explained = engine(timing)
    explained.ask("slowed", delays=((0, 3.0), (2, 4.0)))
    explained.clock.advance(20)
    sentence = why(explained, "slowed").sentence
    assert ", 3.0 s of it on purpose (a fault or a script); 5 tokens" in sentence
    assert sentence.endswith(", 4.0 s of it on purpose (a fault or a script).")


@both_timings
def test_explanation_of_a_delay_by_a_pause_states_the_duration(timing: str) -> None:
    explained = engine(timing)
    explained.engine.executor.pause()
    explained.ask("late")
    explained.clock.advance(5)
    explained.engine.executor.resume()
    explained.clock.advance(10)
    assert why(explained, "late").sentence.startswith("Waited 5.0 s while the engine was paused")


@pytest.mark.parametrize("seed", range(6))
def test_explanation_phases_span_the_whole_duration_of_any_request(seed: int) -> None:
    """Drawn loads with adapters, priorities, transfers, aborts and pauses, in both timings."""
    rng, names = Random(seed), [f"r{number}" for number in range(30)]
    shape = {
        "slots": rng.choice([1, 8]),
        "blocks": rng.choice([None, 60]),
        "by_priority": seed % 3 == 0,
    }
    options = {"adapters": ("x", "y"), "kv_cache_transfer_latency": 1.0, "max_waiting": 100}
    explained = engine(
        "steps" if seed % 2 else "requests", rng.choice([256, 8192]), **shape, **options
    )
    executor = explained.engine.executor
    for place, name in enumerate(names):
        prompt = [rng.randrange(1000) for _ in range(rng.choice([3, 50, 400]))]
        fields = {"adapter": rng.choice([None, "x", "y"]), "remote_prefill": rng.random() < 0.1}
        handle = explained.ask(
            name, prompt_ids=prompt, max_tokens=30, priority=rng.randrange(3), **fields
        )
        explained.clock.advance(rng.choice([0, 0.01, 0.3]))
        for act, chance in ((handle.abort, 0.05), (executor.pause, 0.05), (executor.resume, 0.2)):
            if rng.random() < chance:
                act()
        why(explained, rng.choice(names[: place + 1]))
    executor.resume()
    explained.clock.advance(300)
    assert {why(explained, name).status for name in names} <= {"length", "abort"}


def test_delay_log_of_thousands_of_steps_stays_within_its_limit() -> None:
    explained = engine("steps", slots=8)
    explained.ask("a", max_tokens=5000, prompt_ids=list(range(20)))
    for number in range(200):
        explained.ask(f"r{number}", prompt_ids=list(range(30)), max_tokens=3)
        explained.clock.advance(0.2)
    log = explained.delays
    assert 0 < log.size_bytes <= log.limit_bytes
    assert len(why(explained, "a").longest_steps) == 20

"""The engine's behaviour:

ends, aborts, priorities, limits, and replies that do not depend on others.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.sampling import RepetitionDetection
from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.errors import ModelLoadError, QueueFull, RequestError
from app.extensions.llm.sampling_params import Priority, SamplingParams
from app.shared.virtual_clock import VirtualClock
from tests.core.kvcache.caches import check
from tests.extensions.llm.tiny import (
    GREEDY,
    VOCABULARY,
    edit_config,
    generate,
    make_engine,
    make_model,
    prompts,
    run_all,
)
from vllm_facts.speculative import SpeculativeConfig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WANTED = prompts(8, seed=11, shared=17)
LOOKUP = SpeculativeConfig(method="ngram", num_speculative_tokens=4)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=5, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    """What each of `WANTED` is answered when nothing else runs; the odd ones are sampled."""
    return [
        generate(make_engine(folder), [prompt], params_of(i))[0] for i, prompt in enumerate(WANTED)
    ]


def params_of(number: int) -> SamplingParams:
    return (
        SAMPLED if number % 2 else SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    )


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.permutations(range(len(WANTED))), st.data())
def test_replies_do_not_depend_on_other_requests_in_the_batch(
    folder: Path, alone: list[list[int]], order: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.sampled_from([4, 8, 16]))
    scarce = data.draw(st.booleans())
    engine = make_engine(
        folder,
        num_blocks=1 + (180 if scarce else 1000) // size,
        block_size=size,
        max_num_seqs=data.draw(st.integers(1, 8)),
        max_num_batched_tokens=data.draw(st.integers(12, 200)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    tokens: dict[str, list[int]] = {}
    for number in order:
        engine.add_request(str(number), WANTED[number], params_of(number))
        for _ in range(data.draw(st.integers(0, 9))):
            note(engine.step(), tokens)
    while engine.has_work:
        note(engine.step(), tokens)
    assert [tokens[str(number)] for number in range(len(WANTED))] == alone
    assert engine.cache.free == engine.cache.capacity
    check(engine.cache)


@pytest.mark.parametrize("config", [None, LOOKUP])
def test_replies_are_unchanged_after_preemption(
    folder: Path, alone: list[list[int]], config: SpeculativeConfig | None
) -> None:
    for wanted in ([0], [1], range(4)):
        engine = make_engine(folder, max_num_batched_tokens=23, speculative_config=config)
        for number in wanted:
            engine.add_request(str(number), WANTED[number], params_of(number))
        tokens: dict[str, list[int]] = {}
        while engine.has_work:
            for _ in range(7):
                note(engine.step(), tokens)
            engine.preempt_all()
        assert tokens == {str(number): alone[number] for number in wanted}
        check(engine.cache)


def note(outputs: list[Output], tokens: dict[str, list[int]]) -> None:
    for output in outputs:
        tokens.setdefault(output.sequence.request_id, []).extend(output.update.ids)


def test_same_seed_repeats_a_reply_but_choices_of_a_request_differ(folder: Path) -> None:
    engine = make_engine(folder)
    first, repeated = (generate(engine, WANTED[:1], SAMPLED)[0] for _ in range(2))
    assert first == repeated
    assert first != generate(engine, WANTED[:1], replace(SAMPLED, seed=6))[0]
    outputs: dict[str, list[Output]] = {}
    engine.add_request("n", WANTED[0], replace(SAMPLED, n=3))
    run_all(engine, outputs)
    choices: list[list[int]] = [[], [], []]
    for out in outputs["n"]:
        choices[out.sequence.index] += out.update.ids
    assert choices[0] == first
    assert len({tuple(choice) for choice in choices}) == 3


def test_reply_ends_at_an_eos_token_a_stop_token_or_the_limit(folder: Path) -> None:
    engine = make_engine(folder)
    prompt = WANTED[0]
    [free] = generate(engine, [prompt])
    end = free[10]
    place = free.index(end)
    engine.inputs.eos_token_ids = frozenset([end])
    for ending, count, reason, stop in (
        ({}, place + 1, "stop", None),
        ({"ignore_eos": True, "max_tokens": 30}, 30, "length", None),
        ({"ignore_eos": True, "stop_token_ids": [end]}, place + 1, "stop", end),
        ({"max_tokens": place}, place, "length", None),
        ({"max_tokens": None, "ignore_eos": True}, 512 - len(prompt), "length", None),
    ):
        engine.add_request("one", prompt, SamplingParams(temperature=0.0, **ending))  # type: ignore[arg-type]
        outputs: dict[str, list[Output]] = {}
        tokens = run_all(engine, outputs)["one"]
        last = outputs["one"][-1].update
        assert (len(tokens), last.finish, last.stop_reason) == (count, reason, stop)
    [later] = generate(
        engine, [prompt], SamplingParams(temperature=0.0, min_tokens=place + 5, max_tokens=40)
    )
    assert end not in later[: place + 5]


@pytest.mark.parametrize(
    ("limits", "count", "finish", "stop_reason"),
    [
        ({}, 4, "repetition", "repetition_detected"),
        ({"min_tokens": 9}, 9, "repetition", "repetition_detected"),
        ({"max_tokens": 4}, 4, "length", None),
    ],
)
def test_repetition_detection_ends_a_reply_that_repeats_a_token(
    folder: Path, limits: dict[str, int], count: int, finish: str, stop_reason: str | None
) -> None:
    params = SamplingParams(
        temperature=0.0,
        ignore_eos=True,
        logit_bias={7: 100.0},
        repetition_detection=RepetitionDetection(max_pattern_size=1, min_count=4),
        **limits,
    )
    engine = make_engine(folder)
    engine.add_request("one", WANTED[0], params)
    outputs: dict[str, list[Output]] = {}
    assert run_all(engine, outputs)["one"] == [7] * count
    last = outputs["one"][-1].update
    assert (last.finish, last.stop_reason) == (finish, stop_reason)


def test_waiting_requests_run_in_order_of_priority(folder: Path) -> None:
    engine = make_engine(folder, max_num_seqs=1)
    short = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    for priority in (Priority.LOW, Priority.NORMAL, Priority.URGENT, Priority.HIGH):
        engine.add_request(priority.name, WANTED[0], short, priority)
    assert list(run_all(engine)) == ["URGENT", "HIGH", "NORMAL", "LOW"]


def test_requests_beyond_the_queue_limit_or_the_time_limit_fail(folder: Path) -> None:
    clock = VirtualClock()
    limited = make_engine(folder, max_num_seqs=1, max_queue_size=2)
    engine = LLMEngine(limited.runner, None, limited.options, now=clock.now)
    engine.add_request("runs", WANTED[0], GREEDY, max_wait_s=1.0)
    engine.step()
    engine.add_request("waits", WANTED[1], GREEDY, max_wait_s=1.0)
    engine.add_request("waits long", WANTED[2], GREEDY)
    with pytest.raises(QueueFull):
        engine.add_request("too many", WANTED[3], GREEDY)
    clock.advance(1.5)
    ended = [output for output in engine.step() if output.update.finish]
    assert [(output.sequence.request_id, output.update.finish) for output in ended] == [
        ("waits", "timeout")
    ]
    assert {name: len(tokens) for name, tokens in run_all(engine).items()} == {
        "runs": 62,
        "waits long": 64,
    }


def test_invalid_requests_and_options_are_rejected(folder: Path) -> None:
    engine = make_engine(folder, num_blocks=9)
    stop = SamplingParams(stop="x")
    bias = SamplingParams(logit_bias={VOCABULARY: 1.0})
    wrong = [(prompt, GREEDY) for prompt in ([], [VOCABULARY], [-1], [1] * 128, "no tokenizer")]
    for prompt, params in [*wrong, ([1], stop), ([1], bias)]:
        with pytest.raises(RequestError):
            engine.add_request("wrong", prompt, params)
    engine.add_request("twice", [1], GREEDY)
    with pytest.raises(RequestError):
        engine.add_request("twice", [1], GREEDY)
    run_all(engine)
    for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
        with pytest.raises(ModelLoadError, match=f"{name} must be at least"):
            EngineOptions(**{name: 0})
    with pytest.raises(RequestError, match="accepts at most 1023"):  # the model's own limit
        make_engine(folder, max_seq_length=4096).add_request("long", [1] * 1024, GREEDY)
    # 8 blocks hold 128 tokens: the longest prompt has room for one more.
    assert [len(tokens) for tokens in generate(engine, [[1] * 127])] == [1]


def test_only_requests_whose_prompts_produce_nan_keys_fail(tmp_path: Path) -> None:
    """In a model of one layer they spoil nothing but what looks back at them."""
    make_model(tmp_path)
    edit_config(tmp_path, num_hidden_layers=1)
    engine = make_engine(tmp_path, max_num_batched_tokens=70)
    first = WANTED[0][:16]
    clean = list(range(16))
    fine = {"same first block": [*first, *clean, 3], "nothing in common": [*clean, *clean, 4]}
    apart = {name: generate(engine, [prompt])[0] for name, prompt in fine.items()}
    generated = {token_id for tokens in (*fine.values(), *apart.values()) for token_id in tokens}
    spoiled = [poison := min({*range(VOCABULARY)} - generated), *clean[1:]]
    failing = {"first": [*first, *spoiled, 1], "still in its prompt": [*first, *spoiled, *[2] * 60]}
    assert engine.cache.reset()
    with torch.inference_mode():
        engine.runner.model.embedding[poison] = float("nan")
    for name, prompt in (failing | fine).items():
        engine.add_request(name, prompt, GREEDY)
    outputs: dict[str, list[Output]] = {}
    assert run_all(engine, outputs) == apart | dict.fromkeys(failing, [])
    assert [outputs[name][-1].update.finish for name in failing] == ["error"] * 2
    assert engine.cache.free == engine.cache.capacity
    check(engine.cache)


def test_logprobs_equal_those_of_transformers(folder: Path) -> None:
    from transformers import LlamaForCausalLM

    engine = make_engine(folder, max_num_batched_tokens=20)
    prompt = WANTED[3]
    generate(engine, [prompt])
    outputs: dict[str, list[Output]] = {}
    params = SamplingParams(
        temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True
    )
    engine.add_request("one", prompt, params)
    tokens = run_all(engine, outputs)["one"]
    generated_entries = [
        entry for output in outputs["one"] for entry in output.update.logprobs or ()
    ]
    prompt_logprobs = outputs["one"][0].update.prompt_logprobs
    assert (
        prompt_logprobs is not None
        and prompt_logprobs[0] is None
        and len(prompt_logprobs) == len(prompt)
    )
    with torch.no_grad():
        model = LlamaForCausalLM.from_pretrained(folder)
        reference = model(torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
    for place, logprob in enumerate([*prompt_logprobs[1:], *generated_entries], 1):
        assert logprob is not None
        assert logprob.token_id == [*prompt, *tokens][place]
        assert logprob.logprob == pytest.approx(
            float(reference[place - 1, logprob.token_id]), abs=1e-3
        )
    assert [len(entry.top) for entry in generated_entries] == [3] * 5

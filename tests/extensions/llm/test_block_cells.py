"""Blocks in the sequences of llama.cpp: every reply sees its own tokens, whatever was shared,
preempted, aborted or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.errors import LLMError
from app.extensions.llm.llama_cpp.cells import BlockCells
from app.extensions.llm.llama_cpp.model_file import GGUFSizes
from app.extensions.llm.llama_cpp.step_batches import StepBatches
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.step import Chunk, StepLogits
from app.extensions.llm.threads import ThreadGovernor
from tests.extensions.llm.tiny import run_all
from vllm_facts.speculative import SpeculativeConfig

pytestmark = pytest.mark.engine

VOCABULARY = 50
BLOCK_SIZE = 4
NO_ROOM = 1
"""llama.cpp's status of a decode for which too few cells are free."""


def next_token(tokens: list[int]) -> int:
    """What follows `tokens`; any other token before it changes it."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


class FakeContext:
    """Cells as llama.cpp has them: a cell is one token, which several sequences may share."""

    def __init__(self, sequences: int, cells: int, batch_tokens: int) -> None:
        self.failing_loads = 0
        """Every n-th load fails; 0 for none."""
        self.loads = 0
        self.sequences: list[dict[int, list[int]]] = [{} for _ in range(sequences)]
        """Position -> cell, for each sequence; a cell is a list of one token."""
        self.cells = cells
        self.batch_tokens = batch_tokens
        self.batch: list[tuple[int, int, int, bool]] = []
        self.rows: list[int] = []
        self.computed = 0

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for position in range(start, end):
            assert position not in self.sequences[target]
            self.sequences[target][position] = self.sequences[source][position]

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        cells = self.sequences[sequence]
        for position in list(cells):
            if position >= start and (end < 0 or position < end):
                del cells[position]

    def save(self, sequence: int) -> object:
        return dict(self.sequences[sequence])

    def load(self, content: object, sequence: int) -> bool:
        assert isinstance(content, dict) and not self.sequences[sequence]
        self.loads += 1
        if self.failing_loads and self.loads % self.failing_loads == 0:
            return False
        if self.used_cells + len(content) > self.cells:
            return False
        for position, cell in content.items():
            self.sequences[sequence][position] = list(cell)
        return True

    @property
    def used_cells(self) -> int:
        return len({id(cell) for cells in self.sequences for cell in cells.values()})

    @property
    def room(self) -> int:
        return self.batch_tokens - len(self.batch)

    @property
    def has_tokens(self) -> bool:
        return bool(self.batch)

    def drop_batch(self) -> None:
        self.batch = []

    def add(self, sequence: int, start: int, tokens: list[int], first_wanted: int) -> None:
        for index, token in enumerate(tokens):
            self.batch.append((sequence, start + index, token, index >= first_wanted))

    def decode(self) -> int:
        if self.used_cells + len(self.batch) > self.cells:
            return NO_ROOM
        self.rows = []
        for sequence, position, token, is_wanted in self.batch:
            cells = self.sequences[sequence]
            assert position == max(cells, default=-1) + 1, "the library wants consecutive positions"
            cells[position] = [token]
            if is_wanted:
                self.rows.append(next_token([cells[at][0] for at in range(position + 1)]))
        self.computed += len(self.batch)
        self.batch = []
        return 0

    def logits(self, rows: int) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        assert len(self.rows) == rows
        logits = numpy.zeros((rows, VOCABULARY), numpy.float32)
        logits[numpy.arange(rows), self.rows] = 1.0
        return logits


class FakeDevice:
    governor = ThreadGovernor(1)

    def use_threads(self, kind: int) -> None:
        self.governor.threads(kind)

    def waited_s(self) -> float:
        return 0.0

    def info(self) -> dict[str, object]:
        return {}


class FakeRunner:
    config = GGUFSizes(
        architecture="fake", vocab_size=VOCABULARY, max_position=1000, num_parameters=1
    )
    device = FakeDevice()
    cache_bytes = 0

    def __init__(self, options: EngineOptions) -> None:
        cells = options.num_blocks * options.block_size
        tokens = options.max_num_batched_tokens + options.max_num_seqs
        sequences = options.max_num_seqs + 1
        self.context = FakeContext(sequences, cells, tokens)
        self.blocks: BlockCells[Any] = BlockCells(self.context, options.block_size, sequences)

    def run(
        self, decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
    ) -> StepLogits:
        batches = StepBatches(self.context, self.blocks, VOCABULARY)
        return batches.run((*decodes, *chunks))

    def rest(self) -> None:
        self.blocks.release_ended()

    def load_weights(self, checkpoint: object) -> None:
        pass

    def make_cache(self) -> None:
        pass

    def free(self, parts: Collection[str]) -> None:
        pass


def make_engine(failing_loads: int = 0, **changes: Any) -> LLMEngine:
    sizes: dict[str, Any] = {
        "num_blocks": 40,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "max_seq_length": 120,
        "step_time_s": 0.0,
        "kv_events": True,
        **changes,
    }
    options = EngineOptions(**sizes)
    runner = FakeRunner(options)
    runner.context.failing_loads = failing_loads
    return LLMEngine(runner, None, options)


def expected_reply(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def random_prompts(random: Random, count: int) -> list[list[int]]:
    """Of 1 to 60 tokens, which often begin alike."""
    heads = [[random.randrange(VOCABULARY) for _ in range(40)] for _ in range(3)]
    prompts = []
    for _ in range(count):
        head = random.choice(heads)[: random.randrange(41)]
        tail = [random.randrange(VOCABULARY) for _ in range(random.randint(1, 20))]
        prompts.append(head + tail)
    return prompts


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("failing_loads", [0, 1, 3])
@pytest.mark.parametrize("num_blocks", [26, 40, 400])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_each_reply_follows_from_its_own_tokens(
    failing_loads: int, num_blocks: int, caching: bool, seed: int
) -> None:
    random = Random(seed)
    engine = make_engine(
        failing_loads=failing_loads, num_blocks=num_blocks, enable_prefix_caching=caching
    )
    waiting = random_prompts(random, 24)
    prompts: dict[str, list[int]] = {}
    aborted = set()
    tokens: dict[str, list[int]] = {}
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    while waiting or engine.has_work:
        if waiting and random.random() < 0.4:
            name = str(len(prompts))
            prompts[name] = waiting.pop()
            engine.add_request(name, prompts[name], params, priority=random.randrange(3))
        if prompts and random.random() < 0.05:
            name = random.choice(list(prompts))
            if engine.abort(name):
                aborted.add(name)
        if random.random() < 0.02:
            engine.preempt_all()
        for output in engine.step():
            name = str(output.sequence.request_id)
            tokens.setdefault(name, []).extend(output.update.ids)
    for name, prompt in prompts.items():
        if name not in aborted:
            assert tokens[name] == expected_reply(prompt, 20), name


def test_a_shared_prefix_is_computed_once() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=64)
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    prefix = [random_token % VOCABULARY for random_token in range(40)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    for number in range(4):
        engine.add_request(str(number), [*prefix, number], params)
        run_all(engine)
    # 41 tokens at first, then the last token alone, and 3 decodes of each reply.
    assert runner.context.computed == 41 + 3 + 4 * 3


def test_a_saved_block_is_loaded_for_the_part_that_a_prompt_has_of_it() -> None:
    """The engine counts only whole blocks as cached; the other tokens are not computed either."""
    engine = make_engine(num_blocks=400, max_num_batched_tokens=64)
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    prompt = [number % VOCABULARY for number in range(43)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    computed = []
    for name, ids in {"first": prompt, "again": prompt, "other": [*prompt[:42], 0]}.items():
        before = runner.context.computed
        engine.add_request(name, ids, params)
        assert run_all(engine)[name] == expected_reply(ids, 4)
        computed.append(runner.context.computed - before)
    assert computed == [43 + 3, 1 + 3, 1 + 3]
    assert engine.stats.prefix_hits == 2 * 40


def test_ended_sequences_leave_no_cells() -> None:
    engine = make_engine(num_blocks=400)
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    for number in range(20):
        engine.add_request(str(number), [number] * 20, params)
        run_all(engine)
        assert runner.context.used_cells <= 20 + 8
    # 20 tokens of a prompt and 7 of its reply fill 6 blocks.
    assert runner.blocks.saved_count == 19 * 6
    runner.rest()
    assert runner.blocks.saved_count == 20 * 6 and runner.context.used_cells == 0


def test_events_and_hits_do_not_depend_on_lost_blocks() -> None:
    seen = []
    for failing_loads in (0, 2):
        engine = make_engine(failing_loads, num_blocks=400)
        random = Random(5)
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        for number, prompt in enumerate([*random_prompts(random, 20), *random_prompts(random, 4)]):
            engine.add_request(str(number), prompt, params)
        tokens = run_all(engine)
        events = [repr(event) for event in engine.cache.take_events()]
        seen.append((tokens, engine.stats.prefix_hits, len(events)))
    assert seen[0] == seen[1]
    assert seen[0][1] > 0


def test_drafts_that_were_wrong_leave_no_tokens() -> None:
    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1
    )
    engine = make_engine(num_blocks=400, speculative_config=config)
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    engine.add_request("0", prompt, params)
    assert run_all(engine) == {"0": expected_reply(prompt, 60)}
    assert engine.stats.draft_tokens > 0


def test_a_full_memory_is_an_error() -> None:
    engine = make_engine(num_blocks=400)
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    runner.context.cells = 60
    engine.add_request("long", [9] * 80, SamplingParams(temperature=0.0, max_tokens=2))
    with pytest.raises(LLMError, match="status 1"):
        run_all(engine)

"""How much of a prompt a step computes, and on how many threads, on a machine that the tests make
up.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Hashable
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.scheduler import PREFILL_SHARE
from app.extensions.llm.device import DeviceManager
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.model_runner import ModelRunner
from app.extensions.llm.step import Chunk, StepLogits
from app.extensions.llm.step_times import FIRST_TOKENS, StepTimes
from app.extensions.llm.threads import (
    LLAMA_CPP_SPINS,
    SHORT_WAIT,
    ThreadGovernor,
    wait_shortly,
)
from config.cores import cgroup_cores, usable_cores
from tests.extensions.llm.tiny import GREEDY, VOCABULARY
from tests.running_server import ROOT

pytestmark = pytest.mark.engine
TARGET_S = 0.2
SLOWER = 2.5


def costs(tokens: int, pairs: float) -> float:
    return 0.03 + 0.002 * tokens + 5e-6 * pairs


class Machine:
    """A clock, and a model whose steps take the time that `seconds` says of tokens and pairs.

    Each step of `slow_steps`, by number, takes `SLOWER` times as long.
    """

    def __init__(
        self,
        folder: Path,
        seconds: Callable[[int, float], float],
        slow_steps: Container[int] = (),
        **options: float,
    ) -> None:
        self.now_s = 0.0
        self.steps: list[tuple[int, int, float]] = []
        self.replies: dict[Hashable, list[int]] = defaultdict(list)
        self.dropped = 0
        """Parts of prompts that were planned and not computed."""
        options = {"num_blocks": 256, "max_seq_length": 1024, "step_time_s": TARGET_S, **options}
        sizes = EngineOptions(**options)  # type: ignore[arg-type]
        checkpoint = load_checkpoint(folder)
        device = DeviceManager("cpu", "float32")
        runner = ModelRunner(
            checkpoint,
            device,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            length=sizes.max_seq_length,
        )
        self.engine = LLMEngine(runner, None, sizes, now=self.now)
        run = runner.run

        def layer_s(parts: list[Chunk]) -> float:
            pairs = sum(len(part.tokens) * (part.start + len(part.tokens) / 2) for part in parts)
            slower = SLOWER if len(self.steps) in slow_steps else 1.0
            return (
                slower
                * seconds(sum(len(part.tokens) for part in parts), pairs)
                / runner.config.num_layers
            )

        def timed(
            decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
        ) -> StepLogits:
            def is_late_after(done: float) -> bool:
                self.now_s += layer_s([*decodes, *chunks]) if done else 0.0
                return is_late(done)

            begun_s = self.now_s
            tokens = sum(len(part.tokens) for part in chunks)
            count = len(chunks)
            logits = run(decodes, chunks, is_late_after)
            self.now_s += layer_s([*decodes, *chunks])
            self.steps.append((len(decodes), tokens, self.now_s - begun_s))
            self.dropped += count - len(chunks)
            return logits

        runner.run = timed  # type: ignore[method-assign]

    def now(self) -> float:
        return self.now_s

    def add(self, number: int, tokens: int, max_tokens: int = 64) -> None:
        prompt = Random(number).choices(range(VOCABULARY), k=tokens)
        self.engine.add_request(number, prompt, replace(GREEDY, max_tokens=max_tokens))

    def run(self, *prompts: int) -> None:
        for number, tokens in enumerate(prompts):
            self.add(number, tokens)
        while self.engine.has_work:
            self.step()

    def step(self) -> None:
        for sequence, output in self.engine.step():
            self.replies[sequence.request_id] += output.ids


def test_long_prompt_is_chunked_to_the_target_step_time(folder: Path) -> None:
    machine = Machine(folder, costs)
    machine.run(8, 8, 8, 900)
    mixed = [took_s for decodes, prompt, took_s in machine.steps if decodes and prompt]
    assert len(mixed) > 5 and max(took_s for _, _, took_s in machine.steps) < 1.2 * TARGET_S
    assert min(mixed[2:-1]) > 0.8 * TARGET_S
    assert all(
        decodes == 3 for decodes, prompt, _ in machine.steps[1:] if prompt
    )  # each gets its token


def test_late_step_drops_its_prompt_chunk_without_changing_replies(folder: Path) -> None:
    plain = Machine(folder, costs)
    slow = Machine(folder, costs, slow_steps=range(3, 90, 4))
    for machine in (plain, slow):
        machine.run(8, 8, 8, 900)
    assert slow.replies == plain.replies and plain.dropped == 0 and slow.dropped > 5
    assert (
        max(took_s for decodes, _, took_s in slow.steps if decodes)
        < 1.6 * TARGET_S
        < SLOWER * TARGET_S
    )
    slow.add(3, 900)
    while slow.engine.has_work:
        slow.step()
    assert slow.replies[3] == 2 * plain.replies[3]
    assert slow.engine.stats.prefix_hits == 900 // 16 * 16, "all its blocks are found"


def test_consecutive_late_steps_delay_streams_only_briefly(folder: Path) -> None:
    machine = Machine(folder, costs, slow_steps=range(6, 14))
    machine.run(8, 8, 8, 900)
    assert machine.dropped
    assert max(took_s for decodes, _, took_s in machine.steps if decodes) < 1.6 * TARGET_S


def test_aborted_prefill_leaves_only_computed_blocks_in_the_cache(
    folder: Path,
) -> None:
    plain = Machine(folder, costs)
    plain.run(8, 900)
    for steps in range(4, 16):
        machine = Machine(folder, costs, slow_steps=range(3, 90, 2))
        for number, tokens in enumerate((8, 900)):
            machine.add(number, tokens)
        for _ in range(steps):
            machine.step()
        stored = machine.engine.scheduler.prefilling[0].stored
        machine.engine.abort(1)
        machine.add(1, 900)
        while machine.engine.has_work:
            machine.step()
        assert machine.dropped and machine.replies == plain.replies
        assert machine.engine.stats.prefix_hits == stored // 16 * 16


def test_prompt_progresses_even_if_every_step_is_late(folder: Path) -> None:
    def seconds(tokens: int, pairs: float) -> float:
        return (0.1 + 0.002 * tokens) * (8 if len(machine.steps) >= 40 else 1)

    machine = Machine(folder, seconds)
    for number in range(4):
        machine.add(number, 200, max_tokens=500)
    while len(machine.steps) < 40:
        machine.step()
    machine.add(4, 300)
    while machine.engine.scheduler.waiting.members or machine.engine.scheduler.prefilling:
        machine.step()
    assert machine.dropped and machine.engine.scheduler.decoding[0] == 5, "before the replies end"


def test_prompts_are_chunked_by_token_count_if_no_target_time_is_set(folder: Path) -> None:
    machine = Machine(
        folder, lambda tokens, pairs: 1.0, max_num_batched_tokens=300, step_time_s=0.0
    )
    machine.run(900)
    assert [prompt for _, prompt, _ in machine.steps if prompt] == [300] * 3


def test_suspended_step_hardly_lowers_the_prompt_chunk_size() -> None:
    times = StepTimes(TARGET_S)
    for number in range(20):
        times.add(150, 1e4 * number, 0.2 + 1e-7 * number)
    limit_before = times.max_prompt_tokens(0, 0, 1000)
    times.add(150, 1e5, 60.0)
    after = times.max_prompt_tokens(0, 0, 1000)
    assert 0.9 * limit_before < after <= limit_before


@settings(max_examples=25, deadline=None)
@given(
    base=st.floats(0, 0.1),
    per_token=st.floats(1e-5, 0.004),
    per_pair=st.floats(0, 1e-5),
    seed=st.integers(0, 9),
)
def test_step_time_estimate_converges_for_any_cost_constants(
    base: float, per_token: float, per_pair: float, seed: int
) -> None:
    times = StepTimes(TARGET_S)
    random = Random(seed)
    place = 0
    steps = []
    assert times.max_prompt_tokens(0, 0, 0) == FIRST_TOKENS
    while place < 2000:
        tokens = min(512, times.max_prompt_tokens(4, 400, place))
        pairs = tokens * (place + tokens / 2) + 400
        took_s = (base + per_token * (tokens + 4) + per_pair * pairs) * random.uniform(0.95, 1.05)
        times.add(tokens + 4, pairs, took_s)
        steps.append((tokens, took_s))
        place += tokens
    most_s = max(TARGET_S, (1 + PREFILL_SHARE) * (base + per_token * 4 + per_pair * 400))
    for tokens, took_s in steps[6:]:
        assert took_s < 1.25 * most_s or tokens == 1
        assert took_s > 0.75 * TARGET_S or tokens == 512 or place - tokens < 512


def played(governor: ThreadGovernor, costs: dict[int, float], steps: int, random: Random) -> float:
    """The cost of some steps, each with a noise of a tenth; more than 4 is said to be a crowd."""
    whole = 0.0
    for _ in range(steps):
        cost = costs[governor.threads(1)] * random.uniform(0.9, 1.1)
        governor.add(1, cost, crowded=cost > 4)
        whole += cost
    return whole


def test_thread_count_falls_while_a_core_is_busy_and_rises_afterwards() -> None:
    governor = ThreadGovernor(most=2, first=2)
    random = Random(1)
    assert played(governor, {1: 1.0, 2: 0.6}, 400, random) < 1.05 * 0.6 * 400
    assert played(governor, {1: 1.0, 2: 1.8}, 400, random) < 400 / 0.9
    assert governor.threads(1) == 1
    played(governor, {1: 1.0, 2: 0.6}, 2000, random)
    assert governor.threads(1) == 2
    assert played(governor, {1: 1.0, 2: 5.0}, 400, random) < 400 / 0.9
    assert governor.threads(1) == 1
    assert governor.threads(2) == 1, "a crowd is for all kinds of steps"
    played(governor, {1: 1.0, 2: 0.6}, 600, random)
    assert governor.threads(1) == 2


def test_fastest_thread_count_is_found_separately_for_each_kind_of_step() -> None:
    governor = ThreadGovernor(most=8, first=8)
    random = Random(2)
    played(governor, {1: 1.0, 4: 0.5, 7: 0.3, 8: 0.9}, 400, random)
    assert governor.threads(1) == 7
    assert ThreadGovernor(most=1, first=3).threads(1) == 1
    assert ThreadGovernor(most=8, first=0).threads(1) == 1, "all cores are busy at the start"
    governor.add(2, 1.0) if governor.threads(2) == 7 else pytest.fail(
        "a new kind begins with the last choice"
    )


def test_usable_cores_respect_affinity_and_cgroups(tmp_path: Path) -> None:
    assert usable_cores() >= 1
    cgroup_file = tmp_path / "cgroup"
    cgroup_file.write_text("4:cpu,cpuacct:/a/b\n2:memory:/a\n0::/unit\n")
    assert cgroup_cores(tmp_path, cgroup_file) == inf
    for name, text in {
        "cpu,cpuacct/a/cpu.cfs_quota_us": "350000",
        "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
        "unit/cpu.max": "max 100000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_cores(tmp_path, cgroup_file) == 3.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cores(tmp_path, cgroup_file) == 1.5
    assert cgroup_cores(tmp_path, tmp_path / "nowhere") == inf


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own count")
def test_thread_on_a_shared_core_reports_its_waiting_time() -> None:
    program = """
import os, time
from app.extensions.llm.core_wait import core_wait_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
begun_s = core_wait_s()
if child := os.fork():
    end_s = time.monotonic() + 0.5
    while time.monotonic() < end_s:
        pass
    os.kill(child, 9)
    print(core_wait_s() - begun_s)
while not child:
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert float(done.stdout) > 0.05


def test_thread_environment_variables_set_by_the_user_are_kept() -> None:
    environ = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "3"}
    wait_shortly(environ)
    assert environ == {
        **SHORT_WAIT, "OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "3"
    }  # fmt: skip
    environ = {"GOMP_SPINCOUNT": "5"}
    wait_shortly(environ, is_llama_cpp=True)
    assert environ == {**SHORT_WAIT, "GOMP_SPINCOUNT": "5"}


def test_threads_of_llama_cpp_wait_longer() -> None:
    environ: dict[str, str] = {}
    wait_shortly(environ, is_llama_cpp=True)
    assert environ == {**SHORT_WAIT, "GOMP_SPINCOUNT": LLAMA_CPP_SPINS}

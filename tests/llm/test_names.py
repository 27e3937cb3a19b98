"""The names of nano-qwen3-serving: each of its rows in docs/seeds.md that a library can show."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from app.llm import command, errors
from app.llm.aio import AsyncLLM
from app.llm.engine import LLMEngine
from app.llm.errors import LLMError, RequestError
from app.llm.llm import LLM, Result, make_engine
from app.llm.model_runner import DeviceManager
from app.llm.sampling_params import SamplingParams
from tests.llm.test_library import text_of
from tests.running_server import ROOT

pytestmark = pytest.mark.engine

FIVE = SamplingParams.greedy(max_tokens=5)
HELLO = [{"role": "user", "content": "Hello"}]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from app.llm import LLM, AsyncLLM, AsyncLLMEngine, LLMEngine, RequestPriority, SamplingParams
from app.llm import GenerationError, InvalidParametersError, ModelLoadError, QueueFullError
SamplingParams.greedy(max_tokens=5)
AsyncLLM.generate, LLM.generate, LLMEngine.generate, AsyncLLMEngine.generate_async, RequestPriority.URGENT
"""


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model_name=model, device="cpu", num_blocks=256, max_seq_length=512)


def test_names_are_there_before_torch_is() -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, timeout=50, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


def test_each_name_is_a_class() -> None:
    import app.llm

    assert all(isinstance(getattr(app.llm, name), type) for name in app.llm.__all__)
    assert app.llm.LLMEngine is LLM and app.llm.QueueFullError is errors.QueueFull
    with pytest.raises(ImportError, match="Nothing"):
        exec("from app.llm import Nothing")


@pytest.mark.parametrize("name", ["greedy", "creative", "balanced"])
def test_presets(llm: LLM, name: str) -> None:
    params: SamplingParams = getattr(SamplingParams, name)(max_tokens=5)
    assert (params.to_dict()["max_tokens"], params.is_greedy) == (5, name == "greedy")
    assert SamplingParams(**params.to_dict()) == params  # type: ignore[arg-type]
    generate: Callable[..., list[Result]] = getattr(llm, f"generate_{name}")
    assert [it["tokens_generated"] for it in generate(["One", "Two"], max_tokens=3)] == [3, 3]


def test_asyncio_answers_what_the_library_does(llm: LLM, model: str) -> None:
    texts = [text_of(result) for result in llm.generate(["Hello", "One", "Two"], FIVE, progress=False)]
    chat = text_of(llm.chat(HELLO, FIVE, system_prompt="Be brief."))

    async def stream(engine: AsyncLLM, prompt: str) -> tuple[str, int]:
        items = [item async for item in engine.generate_stream(prompt, FIVE)]
        return "".join(str(item["token"]) for item in items), len(items)

    async def talk() -> None:
        async with AsyncLLM(model_name=model, device="cpu", num_blocks=64, max_seq_length=512) as engine:
            assert text_of(await engine.generate("Hello", FIVE)) == texts[0]
            assert [*map(text_of, await engine.generate_async("Hello", FIVE))] == texts[:1]
            assert [*map(text_of, await engine.generate(["Hello"], FIVE))] == texts[:1]
            assert await engine.generate([]) == []
            batch = await engine.generate_batch(["Hello", "One", "Two"], FIVE, batch_size=2)
            assert [*map(text_of, batch)] == texts
            assert text_of(await engine.chat(HELLO, FIVE, system_prompt="Be brief.")) == chat
            items = [item async for item in engine.chat_stream(HELLO, FIVE, system_prompt="Be brief.")]
            assert "".join(str(item["token"]) for item in items) == items[-1]["text"] == chat
            assert [item["finished"] for item in items] == [False] * 4 + [True]
            assert text_of(await engine.get_result(await engine.submit_request("Hello", FIVE))) == texts[0]
            assert (await engine.get_stats())["completed_requests"] == 9
            await engine.clear_stats()
            assert (await engine.get_stats())["total_requests"] == 0
            info = engine.get_model_info()
            assert (info["model_name"], info["max_seq_length"]) == (model, 512)
            assert (info["architecture"], info["device"], info["dtype"]) == ("qwen3", "cpu", "float32")
            streams = await asyncio.gather(*(stream(engine, prompt) for prompt in ("Hello", "One", "Two")))
            assert [text for text, _ in streams] == texts and {count for _, count in streams} == {5}
            left = engine.generate_stream("a", SamplingParams(max_tokens=400, ignore_eos=True))
            await anext(left)
            await left.aclose()
            await engine.generate("b", SamplingParams(max_tokens=1))
            stats = await engine.get_stats()
            assert cast("dict[str, int]", stats["scheduler_stats"])["active_requests"] == 0

    asyncio.run(talk())


def test_asynchronous_choices_and_failures(model: str) -> None:
    engines: list[LLMEngine] = []

    def make() -> LLMEngine:
        engines.append(make_engine(model))
        return engines[0]

    async def talk() -> None:
        async with AsyncLLM(make) as llm:
            two = SamplingParams(max_tokens=3, n=2, seed=1)
            results = await llm.generate("Hello", two)
            assert isinstance(results, list) and len(results) == 2
            items = [item async for item in llm.generate_stream("Hello", two)]
            texts = {item["index"]: item["text"] for item in items}
            assert [texts[0], texts[1]] == [*map(text_of, results)]
            long = SamplingParams(max_tokens=400, ignore_eos=True)
            with pytest.raises(RequestError):
                await llm.generate_async(["Hello", []], long)
            waiting = asyncio.ensure_future(llm.get_stats())
            await asyncio.sleep(0)
            waiting.cancel()
            assert text_of(await llm.generate("Hello", FIVE))
            assert not engines[0].has_work
            with pytest.raises(RequestError, match="77"):
                await llm.get_result(77)
            forgotten = await llm.submit_request("Hello", long)
        for late in (llm.get_stats(), llm.get_result(forgotten), llm.chat(HELLO)):
            with pytest.raises(LLMError):
                await late

    asyncio.run(talk())


def test_devices_are_found_and_modules_moved_there() -> None:
    assert DeviceManager.detect_device("cuda:99") == "cpu"
    manager = DeviceManager("cpu", "bfloat16")
    assert manager.detect_device() in ("cpu", "cuda", "mps")
    moved = manager.optimize_for_device(torch.nn.Linear(2, 2))
    assert next(moved.parameters()).dtype == torch.bfloat16


@pytest.fixture
def told(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs the command, in this process; what it prints."""
    words = ["--model", model, "--temperature", "0", "--max-tokens", "5", "--device", "cpu"]

    def run(*more: str, said: str = "", status: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        assert command.run([*words, *more]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def test_the_command_reads_and_writes_files(llm: LLM, told: Callable[..., str], tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.txt", tmp_path / "results.json"
    prompts.write_text("One\n\n  Two\n")
    texts = [text_of(result) for result in llm.generate(["One", "Two"], FIVE, progress=False)]
    assert told("--file", str(prompts)) == f"> One\n{texts[0]}\n> Two\n{texts[1]}\n"
    told("--file", str(prompts), "--output", str(output))
    assert [text_of(result) for result in json.loads(output.read_text())] == texts
    told("One", "-o", str(output))
    assert [text_of(result) for result in json.loads(output.read_text())] == texts[:1]
    for wrong in (("--file", str(tmp_path / "none")), ("--output", str(output)), ("a", "--model", "./no")):
        assert told(*wrong, status=1).startswith("error: ")


def test_the_command_tells_statistics(llm: LLM, model: str, told: Callable[..., str]) -> None:
    text = text_of(llm.chat(HELLO, FIVE)) + "\n"
    alone = json.loads(told("--stats"))
    assert (alone["model_name"], alone["total_requests"]) == (model, 0)
    said, _, stats = told("--stats", "One").partition("\n{")
    assert said and json.loads("{" + stats)["completed_requests"] == 1
    chat = told(said="Hello\nstats\nclear\nHello\nstats\n")
    first, second, rest = chat.split(text)
    assert first == "" and all(json.loads(it)["completed_requests"] == 1 for it in (second, rest))

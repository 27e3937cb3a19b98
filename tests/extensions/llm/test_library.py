"""The library as scripts use it, and its command, by our names and those of nano-qwen3-serving."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from app.extensions.llm import command
from app.extensions.llm.async_llm import AsyncLLM
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.errors import LLMError, ModelLoadError, RequestError
from app.extensions.llm.library import make_engine
from app.extensions.llm.llm import LLM
from app.extensions.llm.model_files import find_model
from app.extensions.llm.sampling_params import SamplingParams
from tests.core.tokenization.test_loading import cached_repository
from tests.running_server import ROOT

pytestmark = pytest.mark.engine

PROMPTS = ["Once upon a time", "Never say", "🦙 and 🐪", "a"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


FIVE = SamplingParams.greedy(max_tokens=5)
HELLO = [{"role": "user", "content": "Hello"}]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from app.llm import LLM, AsyncLLM, AsyncLLMEngine, LLMEngine, RequestPriority, SamplingParams
from app.llm import GenerationError, InvalidParametersError, QueueFullError
SamplingParams.greedy(max_tokens=5)
AsyncLLM.generate, LLM.generate, LLMEngine.generate, AsyncLLMEngine.generate_async, RequestPriority.URGENT
"""


def text_of(result: object) -> str:
    assert isinstance(result, dict)
    return str(result["generated_text"])


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model_name=model, device="cpu", num_blocks=256, max_seq_length=512)


def test_streamed_results_equal_batch_results(llm: LLM) -> None:
    results = llm.generate(PROMPTS, GREEDY)
    for prompt, result in zip(PROMPTS, results, strict=True):
        items = list(llm.generate_stream(prompt, GREEDY))
        assert (
            "".join(str(item["token"]) for item in items)
            == result["generated_text"]
            == items[-1]["text"]
        )
        assert [item["finished"] for item in items] == [False] * 23 + [True]
        assert [item["token_id"] for item in items] == result["token_ids"]
        assert (result["tokens_generated"], result["finish_reason"]) == (24, "length")
    whole = llm.chat(HELLO, GREEDY, system_prompt="Be brief.")
    items = list(llm.chat_stream(HELLO, GREEDY, system_prompt="Be brief."))
    assert items[-1]["text"] == whole["generated_text"]
    assert whole["prompt_tokens"] == len(llm.encode_chat(HELLO, "Be brief."))


def test_each_prompt_is_completed_with_its_own_sampling_parameters(llm: LLM, model: str) -> None:
    params = [SamplingParams(max_tokens=count, seed=count, ignore_eos=True) for count in (3, 5, 4)]
    results = llm.generate(PROMPTS[:3], params, progress=False)
    assert [result["tokens_generated"] for result in results] == [3, 5, 4]
    alone = [
        llm.generate_single(prompt, prompt_params)
        for prompt, prompt_params in zip(PROMPTS, params, strict=False)
    ]
    assert [result["token_ids"] for result in alone] == [result["token_ids"] for result in results]
    with pytest.raises(RequestError, match="2 sampling_params were provided for 1 prompts"):
        llm.generate("Hello", params[:2])

    async def talk() -> list[dict[str, object]]:
        async with AsyncLLM(model, num_blocks=64, max_seq_length=512) as llm:
            with pytest.raises(RequestError, match="sampling_params"):
                await llm.generate_async(PROMPTS[:3], params[:2])
            return await llm.generate_batch(PROMPTS[:3], params, batch_size=2)

    assert [result["token_ids"] for result in asyncio.run(talk())] == [
        result["token_ids"] for result in results
    ]


def test_failed_prompt_is_reported_and_other_prompts_succeed(llm: LLM) -> None:
    failed, fine = llm.generate([[], PROMPTS[0]], GREEDY, progress=False)
    assert failed["error"] == "The prompt is empty." and failed["generated_text"] == ""
    assert fine["tokens_generated"] == 24
    with pytest.raises(RequestError):
        next(llm.generate_stream([10**6], GREEDY))


def test_generate_method_completes_more_prompts_than_the_queue_holds(
    model: str,
) -> None:
    with LLM(model, num_blocks=64, max_seq_length=512, max_queue_size=2, max_num_seqs=2) as llm:
        assert [
            result["tokens_generated"] for result in llm.generate(["a"] * 9, GREEDY, progress=False)
        ] == [24] * 9
        stats = llm.get_stats()
        assert (stats["completed_requests"], stats["success_rate"]) == (9, 1.0)
        llm.clear_stats()
        assert llm.get_stats()["total_requests"] == 0


def test_hub_model_name_is_found_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = cached_repository(tmp_path, "some-people/a-model")
    (snapshot / "config.json").write_text("{}")
    assert find_model("some-people/a-model") == snapshot
    with pytest.raises(ModelLoadError, match="Model not found: some-people/another"):
        find_model("some-people/another")


def test_public_names_can_be_imported_without_importing_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, timeout=50, check=True)


def test_sampling_presets_are_valid_sampling_parameters(llm: LLM) -> None:
    for name in ("greedy", "creative", "balanced"):
        params: SamplingParams = getattr(SamplingParams, name)(max_tokens=5)
        assert (params.to_dict()["max_tokens"], params.is_greedy) == (5, name == "greedy")
        assert SamplingParams(**params.to_dict()) == params
        results = getattr(llm, f"generate_{name}")(["One", "Two"], max_tokens=3)
        assert [result["tokens_generated"] for result in results] == [3, 3]


def test_async_library_returns_the_same_results_as_the_synchronous_library(
    llm: LLM, model: str
) -> None:
    texts = [
        text_of(result) for result in llm.generate(["Hello", "One", "Two"], FIVE, progress=False)
    ]
    chat = text_of(llm.chat(HELLO, FIVE, system_prompt="Be brief."))

    async def stream(engine: AsyncLLM, prompt: str) -> tuple[str, int]:
        items = [item async for item in engine.generate_stream(prompt, FIVE)]
        return "".join(str(item["token"]) for item in items), len(items)

    async def talk() -> None:
        async with AsyncLLM(
            model_name=model, device="cpu", num_blocks=64, max_seq_length=512
        ) as engine:
            assert text_of(await engine.generate("Hello", FIVE)) == texts[0]
            assert [*map(text_of, await engine.generate_async("Hello", FIVE))] == texts[:1]
            assert [*map(text_of, await engine.generate(["Hello"], FIVE))] == texts[:1]
            assert await engine.generate([]) == []
            batch = await engine.generate_batch(["Hello", "One", "Two"], FIVE, batch_size=2)
            assert [*map(text_of, batch)] == texts
            assert text_of(await engine.chat(HELLO, FIVE, system_prompt="Be brief.")) == chat
            items = [
                item async for item in engine.chat_stream(HELLO, FIVE, system_prompt="Be brief.")
            ]
            assert "".join(str(item["token"]) for item in items) == items[-1]["text"] == chat
            assert [item["finished"] for item in items] == [False] * 4 + [True]
            assert (
                text_of(await engine.get_result(await engine.submit_request("Hello", FIVE)))
                == texts[0]
            )
            assert (await engine.get_stats())["completed_requests"] == 9
            await engine.clear_stats()
            assert (await engine.get_stats())["total_requests"] == 0
            info = engine.get_model_info()
            assert (info["model_name"], info["max_seq_length"]) == (model, 512)
            assert (info["architecture"], info["device"], info["dtype"]) == (
                "qwen3",
                "cpu",
                "float32",
            )
            streams = await asyncio.gather(
                *(stream(engine, prompt) for prompt in ("Hello", "One", "Two"))
            )
            assert [text for text, _ in streams] == texts and {count for _, count in streams} == {5}
            left = engine.generate_stream("a", SamplingParams(max_tokens=400, ignore_eos=True))
            await anext(left)
            await left.aclose()
            await engine.generate("b", SamplingParams(max_tokens=1))
            stats = await engine.get_stats()
            assert cast("dict[str, int]", stats["scheduler_stats"])["active_requests"] == 0

    asyncio.run(talk())


def test_async_streams_end_when_the_engine_stops(model: str) -> None:
    async def talk() -> None:
        engine = AsyncLLM(partial(make_engine, model))
        stream = engine.generate_stream("a", SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        await engine.shutdown()
        with pytest.raises(LLMError):
            async for _ in stream:
                pass
        with pytest.raises(LLMError):
            await engine.generate("a")
        lost = AsyncLLM(partial(make_engine, "./nothing"))
        with pytest.raises(LLMError):
            await lost.generate("a")
        await lost.shutdown()

    asyncio.run(talk())
    with pytest.raises(ModelLoadError):
        LLM("./nothing")


def test_async_api_returns_several_choices_and_reports_failures(model: str) -> None:
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


@pytest.fixture
def output_of(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs the command, in this process; what it prints."""
    words = ["--model", model, "--temperature", "0", "--max-tokens", "5", "--device", "cpu"]

    def run(*flags: str, stdin: str = "", status: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        assert command.run([*words, *flags]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def test_generate_command_reads_and_writes_files(
    llm: LLM, output_of: Callable[..., str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    output = tmp_path / "results.json"
    prompts.write_text("One\n\n  Two\n")
    texts = [text_of(result) for result in llm.generate(["One", "Two"], FIVE, progress=False)]
    assert output_of("--file", str(prompts)) == f"> One\n{texts[0]}\n> Two\n{texts[1]}\n"
    output_of("--file", str(prompts), "--output", str(output))
    assert [text_of(result) for result in json.loads(output.read_text())] == texts
    output_of("One", "-o", str(output))
    assert [text_of(result) for result in json.loads(output.read_text())] == texts[:1]
    for wrong in (
        ("--file", str(tmp_path / "none")),
        ("--output", str(output)),
        ("a", "--model", "./no"),
    ):
        assert output_of(*wrong, status=1).startswith("error: ")


def test_generate_command_prints_statistics(
    llm: LLM, model: str, output_of: Callable[..., str]
) -> None:
    text = text_of(llm.chat(HELLO, FIVE)) + "\n"
    alone = json.loads(output_of("--stats"))
    assert (alone["model_name"], alone["total_requests"]) == (model, 0)
    first_reply, _, stats = output_of("--stats", "One").partition("\n{")
    assert first_reply and json.loads("{" + stats)["completed_requests"] == 1
    first, second, last_stats = output_of(stdin="Hello\nstats\nclear\nHello\nstats\n").split(text)
    assert first == "" and all(
        json.loads(stats_text)["completed_requests"] == 1 for stats_text in (second, last_stats)
    )

"""The library as scripts use it: a model with a tokenizer, texts, streams, chats, asyncio."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from unittest.mock import MagicMock

import pytest

from app.llm.aio import AsyncLLM
from app.llm.errors import LLMError, ModelLoadError, RequestError
from app.llm.llm import LLM, make_engine
from app.llm.sampling_params import SamplingParams
from tests.running_server import ROOT

pytestmark = pytest.mark.engine

PROMPTS = ["Once upon a time", "Never say", "🦙 and 🐪", "a"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def text_of(result: object) -> str:
    assert isinstance(result, dict)
    return str(result["generated_text"])


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model, "cpu", num_blocks=256, max_seq_length=512)


def test_streams_say_what_batches_say(llm: LLM) -> None:
    results = llm.generate(PROMPTS, GREEDY)
    for prompt, result in zip(PROMPTS, results, strict=True):
        items = list(llm.generate_stream(prompt, GREEDY))
        assert "".join(str(item["token"]) for item in items) == result["generated_text"] == items[-1]["text"]
        assert [item["finished"] for item in items] == [False] * 23 + [True]
        assert [item["token_id"] for item in items] == result["token_ids"]
        assert (result["tokens_generated"], result["finish_reason"]) == (24, "length")


def test_two_streams_at_once_and_one_that_is_left(llm: LLM) -> None:
    texts = [str(result["generated_text"]) for result in llm.generate(PROMPTS[:2], GREEDY)]
    llm.generate_stream(PROMPTS[2], GREEDY)  # which is not begun, and takes nothing
    assert not llm.engine.has_work
    left = llm.generate_stream(PROMPTS[2], GREEDY)
    next(left)
    streams = [llm.generate_stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    pairs = list(zip(*streams, strict=True))
    assert ["".join(str(pair[i]["token"]) for pair in pairs) for i in range(2)] == texts
    left.close()
    assert not llm.engine.has_work


def test_stop_strings_end_a_reply(llm: LLM) -> None:
    text = str(llm.generate_single(PROMPTS[0], GREEDY)["generated_text"])
    stop = text[9:13]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=[stop])
    result = llm.generate_single(PROMPTS[0], params)
    assert result["generated_text"] == text[: text.index(stop)]
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", stop)


def test_what_fails_is_told_and_others_live(llm: LLM) -> None:
    failed, fine = llm.generate([[], PROMPTS[0]], GREEDY, progress=False)
    assert failed["error"] == "The prompt is empty." and failed["generated_text"] == ""
    assert fine["tokens_generated"] == 24
    with pytest.raises(RequestError):
        next(llm.generate_stream([10**6], GREEDY))


def test_more_prompts_than_may_wait(model: str) -> None:
    with LLM(model, num_blocks=64, max_seq_length=512, max_queue_size=2, max_num_seqs=2) as llm:
        results = llm.generate(["a"] * 9, GREEDY, progress=False)
        assert [result["tokens_generated"] for result in results] == [24] * 9
        stats = llm.get_stats()
        assert (stats["completed_requests"], stats["success_rate"]) == (9, 1.0)
        llm.clear_stats()
        assert llm.get_stats()["total_requests"] == 0


def test_batches_have_a_progress_bar(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = MagicMock()
    monkeypatch.setattr("tqdm.tqdm", bar)
    one = SamplingParams(max_tokens=1)
    llm.generate_single("a", one)
    llm.generate(["a", "b"], one, progress=False)
    assert not bar.called
    llm.generate(["a", "b", "c"], one)
    assert bar.call_args.kwargs["total"] == 3
    assert bar.return_value.update.call_count == 3 and bar.return_value.close.called


def test_a_batch_that_is_interrupted_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def interrupted() -> None:
        step()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
    assert not llm.engine.has_work
    assert llm.engine.cache.free == llm.engine.cache.capacity


def test_chats(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    whole = llm.chat(messages, GREEDY, system_prompt="Be brief.")
    items = list(llm.chat_stream(messages, GREEDY, system_prompt="Be brief."))
    assert items[-1]["text"] == whole["generated_text"]
    assert whole["prompt_tokens"] == len(llm.encode_chat(messages, "Be brief."))


def test_streams_end_when_the_engine_does(model: str) -> None:
    async def talk() -> None:
        engine = AsyncLLM(lambda: make_engine(model))
        stream = engine.generate_stream("a", SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        await engine.shutdown()
        with pytest.raises(LLMError):
            async for _ in stream:
                pass
        with pytest.raises(LLMError):
            await engine.generate("a")

    asyncio.run(talk())


def test_a_model_that_cannot_be_loaded_is_told_to_who_asks() -> None:
    async def talk() -> None:
        engine = AsyncLLM(lambda: make_engine("./nothing"))
        with pytest.raises(LLMError):
            await engine.generate("a")
        await engine.shutdown()

    asyncio.run(talk())
    with pytest.raises(ModelLoadError):
        LLM("./nothing")


def run(*words: str, said: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "generate", *words]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        input=said,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_a_name_of_the_hub_is_found_in_its_cache(llm: LLM, model: str, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--some-people--a-model"
    copytree(model, cache / "snapshots" / "0123abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123abc")
    words = ("--temperature", "0", "--max-tokens", "3", "--device", "cpu", PROMPTS[0])
    found = run("--model", "some-people/a-model", *words, HF_HOME=str(tmp_path))
    params = SamplingParams(temperature=0.0, max_tokens=3)
    assert found.stdout == f"{text_of(llm.generate_single(PROMPTS[0], params))}\n", found.stderr
    missing = run("--model", "some-people/another", *words, HF_HOME=str(tmp_path))
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "There is no model some-people/another" in missing.stderr


def test_nothing_else_imports_torch() -> None:
    code = (
        "import sys, app.cli, app.wiring.factory, wsgi; sys.exit(bool({'torch', 'app.llm'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=50).returncode == 0

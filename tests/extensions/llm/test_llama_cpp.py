"""GGUF models in llama.cpp: the words of its own server, and a line for each broken file."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.text.base import ChatOptions
from app.extensions.llm.config import Checkpoint
from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.errors import LLMError, ModelLoadError, RequestError
from app.extensions.llm.library import make_engine
from app.extensions.llm.llama_cpp import binding, huge_pages
from app.extensions.llm.llama_cpp.model_file import GGUFModel, read_model
from app.extensions.llm.loader import open_model
from app.extensions.llm.sampling_params import SamplingParams, StructuredOutputsParams
from tests.extensions.llm.tiny import prompts, run_all
from tests.extensions.llm.tiny_gguf import ARCHITECTURES, END, VOCABULARY, make_gguf
from tests.running_server import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

REPLY_TOKENS: Final = 48
GREEDY: Final = SamplingParams(
    temperature=0.0, max_tokens=REPLY_TOKENS, min_tokens=REPLY_TOKENS, logprobs=4
)
"""The end token is banned, as by the server's `ignore_eos`."""
ROUNDING: Final = 0.1
"""Distance of two log probabilities that rounding may swap.

Rounding depends on the batch, and keys and values are float16.
"""
SERVER: Final = """
import json, sys
import xllamacpp

path, count = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx = 1024
params.n_parallel = 1
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
replies = []
for prompt in json.load(sys.stdin):
    request = {
        "prompt": prompt,
        "n_predict": int(count),
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "cache_prompt": False,
    }
    reply = server.handle_completions(request)
    replies.append(reply["choices"][0]["logprobs"]["content"])
print("REPLIES" + json.dumps(replies))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf")


def engine_of(path: Path, **changes: Any) -> LLMEngine:
    sizes: dict[str, Any] = {"num_blocks": 64, "max_seq_length": 512, "num_threads": 1, **changes}
    return make_engine(str(path), "cpu", **sizes)


def server_replies(path: Path, wanted: Sequence[Sequence[int]]) -> list[list[dict[str, Any]]]:
    """What the library's own server replies, in a process of its own, one prompt at a time."""
    process = subprocess.run(
        [sys.executable, "-c", SERVER, str(path), str(REPLY_TOKENS)],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    [line] = [line for line in process.stdout.splitlines() if line.startswith("REPLIES")]
    replies: list[list[dict[str, Any]]] = json.loads(line.removeprefix("REPLIES"))
    return replies


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_replies_equal_those_of_the_librarys_server(
    architecture: str, tmp_path: Path
) -> None:
    file = make_gguf(tmp_path / "model.gguf", architecture)
    wanted = prompts(8, shared=20)
    # Prompts come in parts, beside decodes; most blocks are shared, and some are preempted.
    engine = engine_of(file, num_blocks=30, max_num_batched_tokens=40)
    outputs: dict[str, list[Output]] = {}
    for number, prompt in enumerate(wanted):
        engine.add_request(str(number), prompt, GREEDY)
    tokens = run_all(engine, outputs)
    shares_prefixes = architecture != "gemma3"  # which has sliding-window attention
    assert (engine.stats.prefix_hits > 0) == shares_prefixes and engine.scheduler.preemptions > 0
    for number, theirs in enumerate(server_replies(file, wanted)):
        ours = tokens[str(number)]
        logprobs = [
            place for output in outputs[str(number)] for place in output.update.logprobs or ()
        ]
        assert len(ours) == len(theirs) == len(logprobs) == REPLY_TOKENS
        for token, logprob, their_token in zip(ours, logprobs, theirs, strict=True):
            likeliest = their_token["top_logprobs"]
            [other] = [place for place in likeliest if place["id"] != their_token["id"]][:1]
            gap = their_token["logprob"] - other["logprob"]
            if token != their_token["id"]:
                assert gap < ROUNDING, (number, token, their_token)
                break
            # The server's probabilities leave out the banned token; their ratios do not.
            our_logprobs = dict(logprob.top)
            our_gap = logprob.logprob - our_logprobs[other["id"]]
            assert our_gap == pytest.approx(gap, abs=ROUNDING, rel=ROUNDING)


def test_end_token_metadata_and_sizes_come_from_the_file(path: Path) -> None:
    model = open_model(path, "auto", None, batch_invariant=False)
    assert isinstance(model, GGUFModel)
    assert model.eos_token_ids == {END}
    assert (model.config.vocab_size, model.config.max_position) == (VOCABULARY, 1024)
    engine = engine_of(path)
    assert engine.inputs.eos_token_ids == {END}
    assert engine.inputs.tokenizer is not None
    ids = engine.inputs.tokenizer.encode_chat([{"role": "user", "content": "ab"}], ChatOptions())
    assert engine.inputs.tokenizer.decode(ids) == "user: ab\nassistant:"


@pytest.mark.parametrize(
    ("device", "dtype", "batch_invariant"),
    [("cpu", "float32", False), ("cpu", None, True), ("cuda", None, False)],
)
def test_torch_computes_a_file_that_is_converted(
    path: Path, device: str, dtype: str | None, batch_invariant: bool
) -> None:
    assert isinstance(open_model(path, device, dtype, batch_invariant), Checkpoint)


def test_seeds_penalties_and_choices_are_those_of_the_engine(path: Path) -> None:
    params = SamplingParams(
        temperature=0.9,
        seed=5,
        n=3,
        max_tokens=24,
        top_p=0.9,
        repetition_penalty=1.2,
        logit_bias={7: 2.0},
        ignore_eos=True,
    )
    replies = []
    for _ in range(2):
        engine = engine_of(path)
        engine.add_request("0", [5, 6, 7], params)
        outputs: dict[str, list[Output]] = {}
        run_all(engine, outputs)
        choices: dict[int, list[int]] = {}
        for output in outputs["0"]:
            choices.setdefault(output.sequence.index, []).extend(output.update.ids)
        replies.append(choices)
    assert replies[0] == replies[1]
    assert len({tuple(ids) for ids in replies[0].values()}) == 3


def test_structured_output_and_prompt_logprobs(path: Path) -> None:
    engine = engine_of(path)
    form = StructuredOutputsParams(choice=["abc", "abd"])
    engine.add_request("0", [5, 6, 7], SamplingParams(structured_outputs=form, max_tokens=10))
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    engine.add_request("1", list(range(5, 70)), params)
    outputs: dict[str, list[Output]] = {}
    run_all(engine, outputs)
    text = "".join(text for output in outputs["0"] for text in output.update.texts)
    assert text in ("abc", "abd")
    logprobs = outputs["1"][0].update.prompt_logprobs
    assert logprobs is not None and len(logprobs) == 65 and logprobs[0] is None


def test_sleep_frees_memory_and_replies_stay_the_same(path: Path) -> None:
    engine = engine_of(path)
    engine.add_request("0", [5, 6, 7], GREEDY)
    before = run_all(engine)["0"]
    engine.runner.free({"weights", "kv_cache"})
    engine.cache.reset()
    engine.runner.make_cache()  # in either order
    engine.runner.load_weights(read_model(path))
    engine.add_request("1", [5, 6, 7], GREEDY)
    assert run_all(engine)["1"] == before


@pytest.mark.skipif(not huge_pages.SYSTEM_FILE.exists(), reason="huge pages of Linux")
def test_weights_are_copied_where_they_get_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not without the variable, which this process lacks, and not if half the memory is less."""
    path = make_gguf(tmp_path / "own.gguf", "llama3.2")  # no other test has mapped it
    system_file = tmp_path / "enabled"
    system_file.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "SYSTEM_FILE", system_file)
    replies = []
    for environ, is_mapped in (({}, True), (huge_pages.ENVIRONMENT, False)):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        engine = engine_of(path)
        assert (str(path) in Path("/proc/self/maps").read_text()) == is_mapped
        engine.add_request("0", [5, 6, 7], GREEDY)
        replies.append(run_all(engine)["0"])
        engine.runner.free({"weights", "kv_cache"})
    assert replies[0] == replies[1]
    monkeypatch.setattr(huge_pages, "usable_memory", lambda: 2 * path.stat().st_size - 1)
    assert not huge_pages.is_copied(path)
    monkeypatch.undo()
    system_file.write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "SYSTEM_FILE", system_file)
    assert not huge_pages.is_copied(path, huge_pages.ENVIRONMENT)


def test_another_file_is_not_loaded_after_sleep(path: Path, tmp_path: Path) -> None:
    engine = engine_of(path)
    engine.runner.free({"weights", "kv_cache"})
    other = make_gguf(tmp_path / "other.gguf", "granite")
    with pytest.raises(ModelLoadError, match="has changed"):
        engine.runner.load_weights(read_model(other))


def test_a_request_too_long_for_the_model_is_rejected(path: Path) -> None:
    engine = engine_of(path, num_blocks=200, max_seq_length=4096)
    with pytest.raises(RequestError, match="at most 1023"):
        engine.add_request("0", [5] * 1024)


def test_sliding_windows_rule_out_drafts(tmp_path: Path) -> None:
    """The library forgets tokens outside of the window, so drafts cannot be taken back."""
    file = make_gguf(tmp_path / "gemma3.gguf", "gemma3")
    config = {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(ModelLoadError, match="speculative_config is not supported"):
        engine_of(file, speculative_config=config)


@pytest.mark.parametrize("max_num_seqs", [1, 255])
def test_a_small_cache_computes_the_same_reply(path: Path, max_num_seqs: int) -> None:
    """The library takes no batch that is larger than the cache."""
    replies = []
    for num_blocks in (64, 2):
        engine = engine_of(path, num_blocks=num_blocks, max_num_seqs=max_num_seqs)
        engine.add_request("0", [5, 6, 7], SamplingParams(temperature=0, max_tokens=8))
        outputs: dict[str, list[Output]] = {}
        run_all(engine, outputs)
        replies.append([token for output in outputs["0"] for token in output.update.ids])
    assert replies[0] == replies[1]
    assert len(replies[0]) == 8


def test_too_many_sequences_are_rejected(path: Path) -> None:
    with pytest.raises(ModelLoadError, match="at most 255 sequences: max_num_seqs is 256"):
        engine_of(path, max_num_seqs=256)


def test_another_release_of_the_library_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "version", lambda name: "2030.1.1")
    with pytest.raises(ModelLoadError, match=r"but 2030\.1\.1 is installed: pip install xllamacpp"):
        binding.Library()


@pytest.mark.parametrize("constant", ["CONTEXT_DEFAULTS", "CONTEXT_FLAGS", "MODEL_DEFAULTS"])
def test_other_structures_are_rejected(monkeypatch: pytest.MonkeyPatch, constant: str) -> None:
    changed = getattr(binding, constant)[:-1] + b"\x63"
    monkeypatch.setattr(binding, constant, changed)
    with pytest.raises(ModelLoadError, match="structures .* are not the known ones"):
        binding.Library()


def cut(content: bytes) -> bytes:
    return content[:-1]


def lengthened(content: bytes) -> bytes:
    """The first tensor begins behind the end of the file."""
    position = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16 + 4
    return content[:position] + struct.pack("<Q", 1 << 40) + content[position + 8 :]


def of_unknown_type(content: bytes) -> bytes:
    position = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    return content[:position] + struct.pack("<I", 99) + content[position + 4 :]


def with_huge_count(content: bytes) -> bytes:
    return content[:8] + struct.pack("<Q", 1 << 62) + content[16:]


def of_no_layers(content: bytes) -> bytes:
    position = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    return content[:position] + struct.pack("<I", 0) + content[position + 4 :]


def of_many_layers(content: bytes) -> bytes:
    position = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    return content[:position] + struct.pack("<I", 513) + content[position + 4 :]


def of_unknown_architecture(content: bytes) -> bytes:
    return content.replace(b"llama", b"lxama")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (cut, "is truncated: it ends within the tensor"),
        (lengthened, "is truncated: it ends within the tensor"),
        (of_unknown_type, "has the unknown type 99"),
        (with_huge_count, "is truncated or is not a GGUF file"),
        (of_no_layers, "has no valid block_count"),
        (of_many_layers, "has 513 layers, but llama.cpp computes at most 512"),
        (of_unknown_architecture, "llama.cpp cannot load .*unknown model architecture: 'lxama'"),
    ],
)
def test_a_broken_file_is_one_line(
    path: Path, tmp_path: Path, broken: Callable[[bytes], bytes], message: str
) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(broken(path.read_bytes()))
    with pytest.raises(ModelLoadError, match=message) as caught:
        engine_of(file)
    assert "\n" not in str(caught.value)


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_check_of_a_head_ends_with_one_error(
    path: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(path.read_bytes())
    head_size = content.index(b"tokenizer.ggml.tokens")
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, head_size))
        content[position : position + 4] = data.draw(st.binary(min_size=4, max_size=4))
    file = tmp_path / "changed.gguf"
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_model(file)
    except LLMError as error:
        assert "\n" not in str(error)


def test_a_server_without_the_library_does_not_import_it() -> None:
    code = "import sys, app.extensions.llm.real_engine; sys.exit('xllamacpp' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)

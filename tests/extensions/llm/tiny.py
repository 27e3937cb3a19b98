"""Tiny random models in the layout of the hub, and what transformers makes of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from app.extensions.llm.device import DeviceManager
from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.model_runner import ModelRunner
from app.extensions.llm.sampling_params import SamplingParams

VOCABULARY = 320
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


@dataclass(frozen=True)
class Shape:
    kind: str = "llama"
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False


def make_model(
    folder: Path, shape: Shape = Shape(), vocabulary: int = VOCABULARY
) -> PreTrainedModel:
    """Save a random model in `folder`; the same one each time."""
    torch.manual_seed(7)
    config_class, model_class = KINDS[shape.kind]
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=shape.tied,
        initializer_range=0.2,  # of 0.02 every logit is about 0, and ties are near
    )
    model = model_class(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # what begins as 0 or 1 would hide mistakes
                tensor.add_(torch.randn_like(tensor) * 0.2)
    model.save_pretrained(folder)
    return model


def make_engine(folder: Path, dtype: str = "float32", **options: object) -> LLMEngine:
    settings = EngineOptions(**{"num_blocks": 256, "max_seq_length": 512, **options})  # type: ignore[arg-type]
    sizes = settings.num_blocks, settings.block_size, settings.max_seq_length
    return LLMEngine(
        ModelRunner(
            load_checkpoint(folder), DeviceManager("cpu", dtype), *sizes, settings.batch_invariant
        ),
        None,
        settings,
    )


def prompts(count: int = 16, seed: int = 3, shared: int = 0) -> list[list[int]]:
    """Of 3 to 60 tokens, the first `shared` of which are the same."""
    random = Random(seed)
    head = [random.randrange(VOCABULARY) for _ in range(shared)]
    return [
        head + [random.randrange(VOCABULARY) for _ in range(random.randint(3, 60))]
        for _ in range(count)
    ]


def greedy_tokens(model: PreTrainedModel, prompt: list[int], count: int = 64) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options
        )
    return whole[0, len(prompt) :].tolist()


def greedy_after(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> list[int]:
    """The likeliest token after the prompt, and after each of `tokens` but the last: they are
    greedy when they are the same.
    """
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0]
    return logits[len(prompt) - 1 :].argmax(-1).tolist()


def run_all(
    engine: LLMEngine, outputs: dict[str, list[Output]] | None = None
) -> dict[str, list[int]]:
    """Steps until all is over; the tokens by request."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.sequence.request_id, []).extend(output.update.ids)
            if outputs is not None:
                outputs.setdefault(output.sequence.request_id, []).append(output)
    return tokens


def generate(
    engine: LLMEngine, wanted: list[list[int]], params: SamplingParams = GREEDY
) -> list[list[int]]:
    for number, prompt in enumerate(wanted):
        engine.add_request(str(number), prompt, params)
    tokens = run_all(engine)
    return [tokens[str(number)] for number in range(len(wanted))]


def logprobs_of(engine: LLMEngine, texts: list[list[int]]) -> tuple[list[int], torch.Tensor]:
    """Of each place of each text:

    the likeliest token, and the log probability of the one that is there.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    outputs: dict[str, list[Output]] = {}
    for number, text in enumerate(texts):
        engine.add_request(str(number), text, params)
    run_all(engine, outputs)
    logprobs = [
        outputs[str(number)][0].update.prompt_logprobs or () for number in range(len(texts))
    ]
    places = [place for text_logprobs in logprobs for place in text_logprobs if place is not None]
    return [place.top[0][0] for place in places], torch.tensor([place.logprob for place in places])


def edit_config(folder: Path, **changes: object) -> None:
    """Change entries of config.json; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(
        json.dumps({name: value for name, value in config.items() if value is not None})
    )

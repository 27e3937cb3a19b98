"""Errors of aiconfigurator on the measured cells, beside those of `--profile auto`.

    python -m benchmarks.cells ../shared/truth/cells --out cells.jsonl
    python -m venv /tmp/rival && /tmp/rival/bin/pip install aiconfigurator==0.12.0
    /tmp/rival/bin/python research/rival_cells.py cells.jsonl

It needs an environment of its own. Each cell gets the newest tables of operators of vLLM, the mean
lengths of the client, its concurrency as the batch, and the number formats of the server. Only
cells that both sides answer are compared.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from pathlib import Path
from statistics import median

from aiconfigurator.cli.api import cli_estimate

MODELS = {
    "llama-3.1-70b-fp8": ("nvidia/Llama-3.1-70B-Instruct-FP8", {"kvcache_quant_mode": "fp8"}),
    "llama-3.1-70b-nvfp4": (
        "meta-llama/Meta-Llama-3.1-70B",
        {"gemm_quant_mode": "nvfp4", "kvcache_quant_mode": "fp8"},
    ),
    "gpt-oss-120b": ("openai/gpt-oss-120b", {}),
    "minimax-m2.5": ("MiniMaxAI/MiniMax-M2.5", {}),
    "minimax-m2.5-nvfp4": ("nvidia/MiniMax-M2.5-NVFP4", {"kvcache_quant_mode": "fp8"}),
    "kimi-k2.5": ("nvidia/Kimi-K2.5-NVFP4", {"kvcache_quant_mode": "fp8"}),
    "qwen3-32b": ("Qwen/Qwen3-32B", {}),
    "qwen3-32b-fp8": ("Qwen/Qwen3-32B-FP8", {}),
    "qwen3-235b-fp8": ("Qwen/Qwen3-235B-A22B-FP8", {}),
}


def estimate(cell: dict) -> tuple[float, float]:
    """Returns mean TPOT and TTFT in ms."""
    model, formats = MODELS[cell["model"]]
    formats = dict(formats)
    if cell["device"] in ("b200", "b300") and cell["model"].startswith(("gpt-oss", "minimax")):
        formats["kvcache_quant_mode"] = "fp8"
    share = 0.9 if cell["client"] == "inferencemax" else 1.0
    tp = cell["tensor_parallel"]
    ranks = cell["dp_attention"]
    if ranks > 1 and cell["model"].startswith("minimax"):
        tp = 1
    experts = {}
    if cell["model"].startswith(("gpt-oss", "kimi", "minimax", "qwen3-235b")):
        name = "moe_ep_size" if cell["has_expert_ranks"] else "moe_tp_size"
        experts[name] = tp * ranks
    result = cli_estimate(
        model,
        f"{cell['device']}_sxm",
        backend_name="vllm",
        isl=round(share * cell["input_tokens"]),
        osl=round(share * cell["output_tokens"]),
        batch_size=max(1, cell["concurrency"] // ranks),
        tp_size=tp,
        attention_dp_size=ranks,
        **experts,
        **formats,
    )
    return float(result.tpot), float(result.ttft)


def figures(errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    if not sizes:
        return "-"
    return f"{len(sizes)} cells, {100 * median(sizes):.1f} / {100 * sizes[int(0.9 * len(sizes))]:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path, help="result of benchmarks.cells --out")
    parser.add_argument("--out", type=Path, help="write the answers as JSON lines")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    refusals: Counter[str] = Counter()
    answers = []
    seen = {}
    for line in options.cells.read_text().splitlines():
        cell = json.loads(line)
        if cell["refusal"] or cell["tpot"] is None:
            continue
        key = tuple(
            cell[name]
            for name in (
                "model device tensor_parallel has_expert_ranks dp_attention input_tokens output_tokens"
                " concurrency client"
            ).split()
        )
        if key not in seen:
            try:
                seen[key] = estimate(cell)
            except Exception as error:
                seen[key] = f"{cell['model']} on {cell['device']}: {type(error).__name__}"
        answer = seen[key]
        if isinstance(answer, str):
            refusals[answer] += 1
            continue
        tpot_ms, ttft_ms = answer
        answers.append({**cell, "rival_tpot": tpot_ms / cell["tpot_ms"] - 1, "rival_ttft": None})
        if cell["ttft"] is not None:
            answers[-1]["rival_ttft"] = ttft_ms / cell["ttft_ms"] - 1
    for file in ("cells.csv", "cells-2.csv"):
        rows = [row for row in answers if row["file"] == file]
        for figure in ("tpot", "ttft"):
            for name in (figure, f"rival_{figure}"):
                print(file, name, figures([row[name] for row in rows if row[name] is not None]))
    for reason, count in refusals.items():
        print(f"refused by aiconfigurator: {count} cells: {reason}")
    if options.out is not None:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in answers))


if __name__ == "__main__":
    main()

"""Compares the KV tokens of `check` with public startup logs of vLLM.

    $ python -m benchmarks.startup_logs research/startup_logs.jsonl [MORE_LOGS.jsonl …]

A line is a JSON object: model, device, devices, tensor_parallel, pipeline_parallel, vllm,
gpu_memory_utilization, max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_dtype,
quantization, other_flags, enforce_eager, kv_tokens, source, and a note that begins with "failed"
for a failed start. All but model and device can be missing.

Logs without a version from 0.11 on, or with an unknown model or device, are listed and not
compared. The same is true for servers that share their device with others (`shared`). A third of
the sources, by a hash, is kept apart: constants come from the other logs alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from app.extensions.costs.fit import estimate, shape_of
from config.declaration import ConfigError
from vllm_facts.accelerator import GIB, DeviceMemory
from vllm_facts.devices import find_device
from vllm_facts.history import version_number
from vllm_facts.model_choice import choose_model

DEVICES = {
    r"A100.*40": "a100-40gb",
    r"A[18]00": "a100-80gb",
    r"GTX 1660|3050": "",
    r"RTX (\d{4}) Ti": "rtx{}ti",
    r"RTX (\d{4})\b(?! Ada)": "rtx{}",
    r"RTX PRO 6000": "rtx-pro-6000",
    r"GH200": "gh200",
    r"GB10|Spark": "gb10",
    r"gfx1151|Strix": "strix-halo",
    r"Thor": "thor",
    r"V100.*32": "v100-32gb",
    r"H20 141": "h20-141gb",
    r"(L40S|L20|L4|H100|H200|H20|A30|A40|MI\d+X|T4|V100|B\d00)": "{}",
}
"""Pattern in the words of an owner -> name of the device."""
OPTIONS = {
    "tensor_parallel": "tensor-parallel-size",
    "pipeline_parallel": "pipeline-parallel-size",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "kv_cache_dtype": "kv-cache-dtype",
}
NAMES = {
    r" AutoRound int4| \(compressed-tensors WNA16\)": "-W4A16",
    r" \(FP8 checkpoint\)": "-FP8",
    r" \(Inferact\)": "",
    r"-Text-NVFP4-MTP$": "-NVFP4",
}
"""Pattern in the words of an owner -> part of the name of a model with these weights."""
DRAFTER = re.compile(r"dflash|mtp|eagle3", re.IGNORECASE)
OLDEST = (0, 11)
VERDICT_MINIMUM = 16
"""Tokens of the smallest cache that can serve."""


def main(paths: Iterable[Path]) -> None:
    """Prints each log with the error, and the median and p90 of all, by device and kept apart."""
    errors: dict[str, list[float]] = defaultdict(list)
    kept: dict[bool, list[float]] = {False: [], True: []}
    verdicts: list[bool] = []
    for line in [line for path in paths for line in path.read_text("utf-8").splitlines()]:
        log = json.loads(line)
        name = f"{log['model']} on {log['devices']} x {log['device']}, vLLM {log.get('vllm')}"
        try:
            tokens, longest, length, device = _estimate(log)
        except (ConfigError, ValueError) as error:
            print(f"skipped   {name}: {error}")
            continue
        is_apart = _is_kept_apart(str(log["source"]))
        mark = "apart" if is_apart else ""
        has_failed = str(log.get("note", "")).startswith("failed")
        is_right = (longest < max(VERDICT_MINIMUM, length)) == has_failed
        verdicts.append(is_right)
        if log.get("kv_tokens") and not has_failed:
            error_percent = (tokens / log["kv_tokens"] - 1) * 100
            errors[device.name].append(error_percent)
            kept[is_apart].append(abs(error_percent))
            print(f"{error_percent:+8.1f} % {mark:5} {name}: {tokens:,} for {log['kv_tokens']:,}")
        else:
            print(f"{'right' if is_right else 'WRONG':>8}   {name}: {tokens:,} for {length:,}")
    for device_name, row in sorted(errors.items()):
        print(f"{device_name}: {', '.join(f'{error:+.1f}' for error in sorted(row))} %")
    for title, absolute in (
        ("all", kept[False] + kept[True]),
        ("fitted", kept[False]),
        ("apart", kept[True]),
    ):
        if absolute:
            p90 = sorted(absolute)[int(len(absolute) * 0.9)]
            print(
                f"{title}: {len(absolute)} logs, median {median(absolute):.1f} %, p90 {p90:.1f} %"
            )
    print(f"verdicts: {sum(verdicts)} of {len(verdicts)} right")


def _is_kept_apart(source: str) -> bool:
    return sha256(source.encode()).digest()[0] % 3 == 0


def _estimate(log: Mapping[str, Any]) -> tuple[int, int, int, DeviceMemory]:
    """Returns tokens, the longest request, the length of a request, and the device.

    Raises:
        ConfigError: The model or the device is not known.
        ValueError: The version is not stated, or too old, or the device is shared.
    """
    version = str(log.get("vllm") or "")
    if version_number(version[:6]) < OLDEST:
        raise ValueError("no version from 0.11 on")
    if log.get("shared"):
        raise ValueError("shares its device")
    if "quantization not stated" in str(log.get("note")):
        raise ValueError("weights of an unknown format")
    device = _device(str(log["device"]))
    name = str(log["model"])
    for pattern, replacement in NAMES.items():
        name = re.sub(pattern, replacement, name)
    choice = choose_model(name, skips_check=True)
    stated = float(log.get("kv_gib") or 0) + float(log.get("weights_gib") or 0)
    if stated > float(log.get("gpu_memory_utilization") or 1) * device.memory / GIB:
        raise ValueError("weights and KV cache above the utilization")
    shape = shape_of(choice, "")
    if shape is None:
        raise ValueError("unknown shape")
    values: dict[str, str | list[str]] = {}
    for field, option in OPTIONS.items():
        if log.get(field) is not None:
            values[option] = str(log[field])
    flags = log.get("other_flags")
    for flag in flags if isinstance(flags, list) else ():
        option, _, value = str(flag).partition(" ")
        if DRAFTER.search(str(flag)):
            values["speculative-config"] = _speculation(str(flag))
        elif option.startswith("--"):
            values[option.removeprefix("--")] = value or "true"
    quantization = str(log.get("quantization"))
    if "online" in quantization:
        values["quantization"] = "fp8"
    elif quantization.startswith("modelopt"):
        values["quantization"] = quantization.split()[0]
    if log.get("enforce_eager"):
        values["enforce-eager"] = "true"
    match = re.match(r"\d+\.\d+(?:\.\d+)?", version)
    fit = estimate(shape, values, device, match[0] if match else "")
    return fit.tokens(), fit.longest(), fit.length, device


def _speculation(words: str) -> str:
    method = DRAFTER.search(words)
    count = re.search(r"num_speculative_tokens\W+(\d+)", words)
    fields = {
        "method": method[0].lower() if method else "",
        "model": "drafter",
        "num_speculative_tokens": int(count[1]) if count else 1,
    }
    if fields["method"] == "mtp":
        del fields["model"]
    return json.dumps(fields)


def _device(words: str) -> DeviceMemory:
    for pattern, name in DEVICES.items():
        match = re.search(pattern, words)
        if match is not None:
            return find_device(name.format(*match.groups()).lower())
    raise ValueError(f"unknown device {words}")


if __name__ == "__main__":
    main(Path(argument) for argument in sys.argv[1:])

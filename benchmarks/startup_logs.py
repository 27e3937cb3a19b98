"""Compares the KV tokens of `check` with public startup logs of vLLM.

    $ python -m benchmarks.startup_logs LOGS.jsonl

A line of LOGS is a JSON object: model, device, devices, tensor_parallel, pipeline_parallel, vllm,
gpu_memory_utilization, max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_dtype,
quantization, enforce_eager, kv_tokens, and a note that begins with "failed" for a failed start.
Logs without a version or with an unknown model or device are listed, and not compared.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from app.extensions.check.memory import estimate, shape_of
from app.extensions.lab.costs.owned_device import OwnedDevice
from app.extensions.lab.costs.owned_devices import owned_device
from config.declaration import ConfigError
from config.vllm.history import version_number
from config.vllm.model_choice import choose_model

DEVICES = {
    r"A100.*40": "a100-40gb",
    r"A100": "a100-80gb",
    r"GTX 1660|3050": "",
    r"RTX (\d{4})\b(?! Ada)": "rtx{}",
    r"RTX PRO 6000": "rtx-pro-6000",
    r"GH200": "gh200",
    r"GB10|Spark": "gb10",
    r"gfx1151|Strix": "strix-halo",
    r"Thor": "thor",
    r"(L40S|L20|L4|H100|H200|H20|A30|A40|MI\d+X)": "{}",
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
OLDEST = (0, 11)


def main(path: Path) -> None:
    """Prints each log with the error, and the median and p90 of all, and by device."""
    errors: dict[str, list[float]] = defaultdict(list)
    verdicts: list[bool] = []
    for line in path.read_text("utf-8").splitlines():
        log = json.loads(line)
        name = f"{log['model']} on {log['devices']} x {log['device']}, vLLM {log['vllm']}"
        try:
            tokens, highest, length = _estimate(log)
        except (ConfigError, ValueError) as error:
            print(f"skipped   {name}: {error}")
            continue
        has_failed = str(log.get("note", "")).startswith("failed")
        is_right = (highest < max(16, length)) == has_failed
        verdicts.append(is_right)
        if log["kv_tokens"] and not has_failed:
            error_percent = (tokens / log["kv_tokens"] - 1) * 100
            errors[str(log["device"])].append(error_percent)
            print(f"{error_percent:+8.1f} % {name}: {tokens:,} for {log['kv_tokens']:,}")
        else:
            print(f"{'right' if is_right else 'WRONG':>8}   {name}: {tokens:,} for {length:,}")
    everything = sorted(abs(error) for row in errors.values() for error in row)
    if not everything:
        return
    for device, row in sorted(errors.items()):
        print(f"{device}: {', '.join(f'{error:+.1f}' for error in row)} %")
    p90 = everything[int(len(everything) * 0.9)]
    print(f"{len(everything)} logs: median {median(everything):.1f} %, p90 {p90:.1f} %")
    print(f"verdicts: {sum(verdicts)} of {len(verdicts)} right")


def _estimate(log: Mapping[str, object]) -> tuple[int, int, int]:
    """Returns tokens, the most tokens within the margin, and the length of a request.

    Raises:
        ConfigError: The model or the device is not known.
        ValueError: The version is not stated, or too old.
    """
    version = str(log["vllm"] or "")
    if version_number(version[:6]) < OLDEST:
        raise ValueError("no version from 0.11 on")
    choice = choose_model(str(log["model"]), skips_check=True)
    shape = shape_of(choice, "")
    if shape is None:
        raise ValueError("unknown shape")
    values: dict[str, str | list[str]] = {}
    for field, option in OPTIONS.items():
        if log[field] is not None:
            values[option] = str(log[field])
    if log["enforce_eager"]:
        values["enforce-eager"] = "true"
    minor = ".".join(version.split(".")[:2])
    fit = estimate(shape, values, _device(str(log["device"])), minor)
    return fit.tokens(), fit.longest(1), fit.length


def _device(words: str) -> OwnedDevice:
    for pattern, name in DEVICES.items():
        match = re.search(pattern, words)
        if match is not None:
            return owned_device(name.format(*match.groups()).lower())
    raise ValueError(f"unknown device {words}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

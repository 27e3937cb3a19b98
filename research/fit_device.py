"""Fits the constants of a device's kernels to public tables of operators.

    pip install --group research
    python research/fit_device.py l40s

The constants belong to app/extensions/costs/kernel_constants.py. The tables for vLLM come from
aiconfigurator (Apache-2.0): products, experts, attention and all-reduce. Four fifths of the shapes
are fitted, and the printed errors are of the remaining shapes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from msgspec import Struct, structs

sys.path.insert(0, str(Path(__file__).parents[1]))
from app.extensions.costs.kernel_constants import KERNELS
from app.extensions.costs.kernel_sum import sheet_rates
from app.extensions.costs.kernels import BYTES, ExpertLayer, Experts, Format, Product, Rates
from vllm_facts.devices import DEVICES

FOLDERS = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "a100": "a100_sxm",
    "l40s": "l40s",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
PROCESSORS = {
    "h100": 132,
    "h200": 132,
    "b200": 148,
    "a100": 108,
    "l40s": 142,
    "b300": 148,
    "gb200": 152,
    "gb300": 152,
    "rtx-pro-6000": 188,
}
PRODUCTS: Mapping[str, Format] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
}
EXPERTS: Mapping[str, Format] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "int4_wo": "int4",
}
DRAWN_LOADS = "power_law_1.01"
"""Rows whose experts are drawn: about as many are in use as `ExpertLayer` expects. In balanced
tables few rows use as many experts as they can.
"""
MOST_ROWS, LEAST_WIDTH = 8192, 1024
ANY = (1e-9, 1e9)
FIXED, SHARE, EXPONENT, WEIGHT = (0.01, 60.0), (0.1, 1.0), (1.0, 16.0), (0.01, 1.0)
"""Ranges of a fixed time in us, of a share of a rate, of an exponent and of a weight."""
LAUNCHED_S = 600e-6
"""Products of fp8 in blocks are launched without a CUDA graph in the tables: only rows that take
longer show what the device needs.
"""
SAMPLE = 2500
"""Rows of a table that are fitted, drawn with a seed."""
US = 1e-6
Row = Mapping[str, Any]
Model = Callable[[Sequence[float], Row], float]
"""Constants and a row of a table -> seconds."""


class Fit(Struct, frozen=True):
    constants: list[float]
    error: float
    """Median of the absolute errors of shapes that the fit did not see, as a share."""
    p90: float

    def __str__(self) -> str:
        return f"{', '.join(f'{it:.3g}' for it in self.constants)}  # {self.error:.1%}, p90 {self.p90:.1%}"


def fit(
    model: Model,
    start: Sequence[float],
    rows: Sequence[Row],
    shape: Callable[[Row], object],
    limits: Sequence[tuple[float, float]] = (),
) -> Fit:
    """Fits positive constants to latencies, on logarithms; a fifth of the shapes is kept back.

    `limits` are the least and greatest value of the first constants.
    """
    rng = Random(1)
    shapes = sorted({repr(shape(row)) for row in rows})
    unseen = set(rng.sample(shapes, max(1, len(shapes) // 5)))
    parts: dict[bool, list[Row]] = defaultdict(list)
    for row in rows:
        parts[repr(shape(row)) in unseen].append(row)
    seen, kept = (rng.sample(part, min(SAMPLE, len(part))) for part in (parts[False], parts[True]))

    def misfits(x: Sequence[float]) -> list[float]:
        constants = [exp(value) for value in x]
        return [log(model(constants, row) / (row["latency"] / 1000)) for row in seen]

    from scipy.optimize import least_squares  # help works without these packages

    ranges = [*limits, *[ANY] * (len(start) - len(limits))]
    found = least_squares(
        misfits,
        [log(value) for value in start],
        bounds=([log(least) for least, _ in ranges], [log(greatest) for _, greatest in ranges]),
        loss="soft_l1",
        f_scale=0.1,
    )
    constants = [exp(value) for value in found.x]
    errors = sorted(abs(model(constants, row) / (row["latency"] / 1000) - 1) for row in kept)
    return Fit(constants, median(errors), errors[int(0.9 * len(errors))])


class Tables:
    """The tables of one device."""

    def __init__(self, device: str, folder: Path) -> None:
        self._folder = folder / FOLDERS[device]
        self.sheet, self.processors = DEVICES[device], PROCESSORS[device]

    def rows(self, kind: str, name: str) -> list[Row]:
        """The rows of the newest table of vLLM."""
        versions = sorted((self._folder / kind / "vllm").iterdir(), key=lambda path: path.name)
        newest = [path / name for path in versions if (path / name).is_file()][-1]
        from pyarrow import parquet

        found: list[Row] = parquet.read_table(newest).to_pylist()
        return found

    def at(self, kind: Format) -> Rates:
        return sheet_rates(self.sheet, kind, self.processors)


def products(tables: Tables) -> Iterator[tuple[str, Fit]]:
    rows = tables.rows("gemm", "gemm_perf.parquet")
    for name, kind in PRODUCTS.items():
        own = [
            row
            for row in rows
            if row["gemm_dtype"] == name
            and row["m"] <= MOST_ROWS
            and min(row["n"], row["k"]) >= LEAST_WIDTH
        ]
        at, size = tables.at(kind), BYTES[kind]
        known = KERNELS["b200"].products[kind]

        def model(x: Sequence[float], row: Row, at: Rates = at, size: float = size) -> float:
            return Product(*x).seconds(row["m"], row["n"], row["k"], weight_bytes=size, rates=at)

        def share(
            x: Sequence[float], row: Row, at: Rates = at, known: Product = known, size: float = size
        ) -> float:
            product = structs.replace(known, compute=x[0])
            return product.seconds(row["m"], row["n"], row["k"], weight_bytes=size, rates=at)

        if kind == "fp8-block":
            own = [row for row in own if row["latency"] / 1000 > LAUNCHED_S]
            if own:
                yield f"{kind}, share of arithmetic, else as B200", fit(share, (0.4,), own, columns)
        elif own:
            start = (4.0, 0.8, 0.6, 4.0, 0.3, 0.2)
            limits = (FIXED, SHARE, (0.1, 1.6), EXPONENT, WEIGHT, WEIGHT)
            yield kind, fit(model, start, own, columns, limits)


def columns(row: Row) -> tuple[int, int]:
    return row["n"], row["k"]


def experts(tables: Tables) -> Iterator[tuple[str, Fit]]:
    rows = tables.rows("moe", "moe_perf.parquet")
    for name, kind in EXPERTS.items():
        own = [
            row
            for row in rows
            if row["moe_dtype"] == name
            and row["moe_ep_size"] == 1
            and row["distribution"] == DRAWN_LOADS
            and (kind != "mxfp4" or "gptoss" in row["kernel_source"])
        ]
        at, size = tables.at(kind), BYTES[kind]

        def model(x: Sequence[float], row: Row, at: Rates = at, size: float = size) -> float:
            layer = ExpertLayer(
                width=row["hidden_size"],
                inner_width=row["inter_size"] / row["moe_tp_size"],
                experts=row["num_experts"],
                experts_per_row=row["topk"],
            )
            return Experts(*x).seconds(row["num_tokens"], layer, weight_bytes=size, rates=at)

        if own:
            yield (
                kind,
                fit(
                    model,
                    (30.0, 0.8, 0.4, 1.5, 1.0),
                    own,
                    lambda row: (row["hidden_size"], chosen(row)),
                    ((0.01, 300.0), SHARE, SHARE, EXPONENT),
                ),
            )


def chosen(row: Row) -> tuple[int, int, float]:
    return row["num_experts"], row["topk"], row["inter_size"] / row["moe_tp_size"]


def decodes(tables: Tables, keys: str) -> Fit | None:
    """Attention of decodes: fixed time, share of bandwidth, time of each sequence.

    `keys` is their format, `bfloat16` or `fp8`.
    """
    key_bytes = 2 if keys == "bfloat16" else 1

    def model(x: Sequence[float], row: Row) -> float:
        fixed_us, memory, sequence_us = x
        read = (
            2
            * key_bytes
            * row["num_key_value_heads"]
            * row["head_dim"]
            * row["batch_size"]
            * (row["step"] + 1)
        )
        return (fixed_us + sequence_us * row["batch_size"]) * US + read / (
            tables.sheet.bandwidth * memory
        )

    rows = [
        row
        for row in tables.rows("attention", "generation_attention_perf.parquet")
        if row["kv_cache_dtype"] == keys and row["head_dim"] == 128 and not row.get("window_size")
        if row["num_heads"] >= row["num_key_value_heads"] and row["batch_size"] <= 512
    ]
    if not rows:
        return None
    return fit(
        model, (10.0, 0.8, 0.05), rows, lambda row: (row["num_heads"], row["num_key_value_heads"])
    )


def prefills(tables: Tables) -> Fit:
    """Attention of prompts: fixed time, share of arithmetic."""

    def model(x: Sequence[float], row: Row) -> float:
        pairs = row["batch_size"] * row["isl"] * (row["isl"] + 1) / 2
        return x[0] * US + 4 * row["num_heads"] * row["head_dim"] * pairs / (
            tables.sheet.flops * x[1]
        )

    rows = [
        row
        for row in tables.rows("attention", "context_attention_perf.parquet")
        if row["kv_cache_dtype"] == "bfloat16" and row["head_dim"] == 128
        if not row.get("window_size")
        if row["isl"] >= 128 and row["num_heads"] >= 4
    ]
    return fit(model, (15.0, 0.5), rows, lambda row: (row["num_heads"], row["num_key_value_heads"]))


def all_reduce(tables: Tables) -> Iterator[tuple[int, Fit]]:
    """One shot and ring, each a fixed time and a factor of the transfer."""
    rows = tables.rows("comm", "custom_allreduce_perf.parquet")
    for devices in (2, 4, 8):
        own = [row for row in rows if row["num_gpus"] == devices and row["backend"] == "vllm_graph"]

        def model(x: Sequence[float], row: Row) -> float:
            size = 2 * row["message_size"] / tables.sheet.link
            return min(x[0] * US + size * x[1], x[2] * US + size * x[3])

        if own:
            yield devices, fit(model, (5.0, 4.0, 10.0, 2.0), own, lambda row: row["message_size"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", choices=FOLDERS)
    parser.add_argument(
        "--tables", type=Path, help="the folder of the tables [that of the package]"
    )
    given = parser.parse_args()
    if any(find_spec(name) is None for name in ("aiconfigurator_core", "pyarrow", "scipy")):
        sys.exit("error: packages are missing: pip install --group research")
    folder = given.tables or Path(str(files("aiconfigurator_core"))) / "systems" / "data"
    tables = Tables(given.device, folder)
    for kind, found in products(tables):
        print(f"product {kind}: {found}", flush=True)
    for kind, found in experts(tables):
        print(f"experts {kind}: {found}", flush=True)
    for keys in ("bfloat16", "fp8"):
        print(f"decodes, {keys} (fixed us, share of bandwidth, us a row): {decodes(tables, keys)}")
    print(f"prefills (fixed us, share of arithmetic): {prefills(tables)}")
    for devices, found in all_reduce(tables):
        print(f"all-reduce over {devices} (once us, factor, ring us, factor): {found}")
    print(f"in use: {KERNELS.get(given.device)}")


if __name__ == "__main__":
    main()

"""Fits the constants of a device's latent attention and recurrent layers to tables of operators.

    pip install --group research
    python research/fit_layers.py h100

The constants belong to app/extensions/costs/layer_constants.py. The tables are those of
`research/fit_device.py`; the products within a layer cost what the constants in use say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))
from app.extensions.costs.kernel_constants import KERNELS
from app.extensions.costs.kernel_sum import ProductSeconds, latent_products
from app.extensions.costs.kernels import BYTES, US, LatentAttention
from app.extensions.costs.layer_shapes import SCAN_OPERATIONS, LatentShape
from research.fit_device import FIXED, FOLDERS, SHARE, Fit, Row, Tables, fit

DEEPSEEK = LatentShape(
    rank=512,
    rope=64,
    query_rank=1536,
    key=128,
    value=128,
    top_tokens=0,
    index_heads=64,
    index_width=128,
)
DEEPSEEK_WIDTH = 7168
SHAPES = {"mla": DEEPSEEK, "sparse_attention": replace(DEEPSEEK, top_tokens=2048)}
"""Folder of tables -> shape of the layer."""
LEAST_HEADS = {"h100": 64, "h200": 64, "b200": 128, "b300": 128, "gb200": 128, "gb300": 128}
"""Heads of the kernels for chosen tokens."""
FEWEST_HEADS = 4
DELTA_WIDTH = 128
"""Numbers of a key and of a value in the table of linear attention."""
FREE = (1e-3, 1e3)
FIXED_US = (FIXED[0], 1000.0)


class Layers:
    """The tables of one device, and its products."""

    def __init__(self, device: str, tables: Tables) -> None:
        self._device = device
        self._tables = tables

    def _product(self) -> ProductSeconds:
        product = KERNELS[self._device].products["bf16"]
        return partial(product.seconds, weight_bytes=BYTES["bf16"], rates=self._tables.at("bf16"))

    def _products(self, latent: LatentShape, rows: int, heads: int) -> float:
        product = self._product()
        return latent_products(
            product, product, latent=latent, rows=rows, width=DEEPSEEK_WIDTH, heads=heads
        )

    def _rows(self, kind: str, table: str, keys: str) -> list[Row]:
        return [
            row
            for row in self._tables.rows(kind, table)
            if row["gemm_type"] == "bfloat16"
            and row["mla_dtype"] == "bfloat16"
            and row["kv_cache_dtype"] == keys
            and row["num_heads"] >= FEWEST_HEADS
            and row["architecture"].startswith("DeepseekV3")
        ]

    def decodes(self, kind: str, table: str, keys: str) -> Fit | None:
        """Fixed time, shares of bandwidth and arithmetic, time of each sequence, and of the index."""
        latent = SHAPES[kind]
        number_bytes = 2 if keys == "bfloat16" else 1
        rates = self._tables.at("bf16")

        def model(x: Sequence[float], row: Row) -> float:
            decode_us, memory, compute, sequence_us, index_memory = x
            kernel = LatentAttention(
                decode_us=decode_us,
                memory=memory,
                fp8_memory=memory,
                decode_compute=compute,
                sequence_us=sequence_us,
                compute=1,
                prefill_us=0,
                index_memory=index_memory,
            )
            rows, context = row["batch_size"], row["step"]
            seen = min(context, latent.top_tokens or context)
            token = kernel.token_seconds(
                latent, heads=row["num_heads"], number_bytes=number_bytes, rates=rates
            )
            ranked = kernel.index_seconds(latent, rates)
            fixed = (decode_us + sequence_us * rows) * US
            products = self._products(latent, rows, row["num_heads"])
            return products + fixed + rows * (seen * token + context * ranked)

        own = self._rows(kind, table, keys)
        if not own:
            return None
        limits = (FIXED_US, FREE, FREE, FREE, FREE)
        return fit(model, (40.0, 0.8, 0.5, 0.1, 1.0), own, heads_of, limits)

    def prefills(self, kind: str, table: str) -> Fit | None:
        """Fixed time, share of arithmetic, and what norms and copies of a token take.

        The last is no constant: vLLM fuses them when it compiles a model.
        """
        latent = SHAPES[kind]
        rates = self._tables.at("bf16")

        def model(x: Sequence[float], row: Row) -> float:
            fixed_us, compute, token_ns = x
            length, heads = row["isl"], row["num_heads"]
            tokens = row["batch_size"] * length
            pairs = tokens * (length + 1) / 2
            operations = 2 * heads * (latent.key + latent.rope + latent.value) * pairs
            if latent.top_tokens:  # the kernel computes with all places of the list
                heads_of_kernel = max(heads, LEAST_HEADS[self._device])
                operations = 2 * heads_of_kernel * (latent.cached + latent.rank) * tokens
                operations *= latent.top_tokens
                operations += 2 * latent.index_heads * latent.index_width * pairs
            attention = operations / (rates.flops * compute)
            products = self._products(latent, tokens, heads)
            return products + fixed_us * US + attention + token_ns * 1e-9 * tokens

        own = [
            row
            for row in self._rows(kind, table, "bfloat16")
            if row["isl"] >= 256 and row["batch_size"] * row["isl"] <= 32768 and not row["step"]
        ]
        if not own:
            return None
        return fit(model, (30.0, 0.5, 10.0), own, heads_of, (FIXED,))

    def states(self) -> tuple[Fit, Fit]:
        """Decodes (fixed time, share of bandwidth), prompts (fixed time, share of arithmetic).

        A layer has two kernels in each phase: the convolution and the recurrence.
        """
        sums: dict[tuple[object, ...], dict[str, Row]] = {}
        for row in self._tables.rows("linear_attention", "gdn_perf.parquet"):
            shape = (row["num_k_heads"], row["num_v_heads"], row["d_model"])
            key = (row["phase"], *shape, row["batch_size"], row["seq_len"])
            sums.setdefault(key, {})[row["kernel_source"].split("_")[0]] = row
        own = [
            {**next(iter(parts.values())), "latency": sum(row["latency"] for row in parts.values())}
            for parts in sums.values()
            if len(parts) == 2
        ]
        sheet = self._tables.sheet

        def decode(x: Sequence[float], row: Row) -> float:
            state = row["num_v_heads"] * DELTA_WIDTH * DELTA_WIDTH
            convolved = (2 * row["num_k_heads"] + row["num_v_heads"]) * DELTA_WIDTH * 3
            moved = 2 * row["batch_size"] * 2 * (state + convolved)
            return x[0] * US + moved / (sheet.bandwidth * x[1])

        def prefill(x: Sequence[float], row: Row) -> float:
            state = row["num_v_heads"] * DELTA_WIDTH * DELTA_WIDTH
            operations = SCAN_OPERATIONS * state * row["batch_size"] * row["seq_len"]
            return x[0] * US + operations / (sheet.flops * x[1])

        decodes = [row for row in own if row["phase"] == "generation"]
        prefills = [
            row
            for row in own
            if row["phase"] == "context" and 256 <= row["batch_size"] * row["seq_len"] <= 32768
            if row["seq_len"] >= 128
        ]
        return (
            fit(decode, (8.0, 0.7), decodes, delta_heads, (FIXED, SHARE)),
            fit(prefill, (30.0, 0.3), prefills, delta_heads),
        )


def heads_of(row: Row) -> object:
    return row["num_heads"], row["batch_size"]


def delta_heads(row: Row) -> object:
    return row["num_k_heads"], row["num_v_heads"], row["d_model"]


def fits(layers: Layers) -> Iterator[tuple[str, object]]:
    for name, kind, prefix in (
        ("latent", "mla", "mla"),
        ("sparse latent", "sparse_attention", "dsa"),
    ):
        try:
            for keys in ("bfloat16", "fp8"):
                table = f"{prefix}_generation_module_perf.parquet"
                what = "fixed us, memory, arithmetic, us a row, index"
                yield f"{name} decodes, {keys} ({what})", layers.decodes(kind, table, keys)
            table = f"{prefix}_context_module_perf.parquet"
            yield f"{name} prefills (fixed us, arithmetic)", layers.prefills(kind, table)
        except FileNotFoundError:
            yield name, "no table"
    try:
        decode, prefill = layers.states()
    except FileNotFoundError:
        yield "states", "no table"
        return
    yield "state decodes (fixed us, memory)", decode
    yield "state prefills (fixed us, arithmetic)", prefill


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", choices=FOLDERS)
    given = parser.parse_args()
    folder = Path(str(files("aiconfigurator_core"))) / "systems" / "data"
    for name, found in fits(Layers(given.device, Tables(given.device, folder))):
        print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()

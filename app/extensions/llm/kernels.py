"""Loops over the numbers of a model on a CPU, compiled by numba at their first import.

Compiling takes up to ten seconds; the result is cached beside this file, or in the home folder.
"""

from __future__ import annotations

import os
from typing import Final

from llvmlite import binding
from numba import config, njit, prange, set_num_threads
from numpy import empty, exp, float32, inf, int16, int32, rint, sqrt, uint32

CAN_CACHE: Final = any(
    os.access(folder, os.W_OK) for folder in (os.path.dirname(__file__), os.path.expanduser("~"))
)
PARALLEL: Final = {"parallel": True, "nogil": True, "cache": CAN_CACHE}
CHANNELS_PER_BLOCK: Final = 32
"""Output channels of a thread's block: their weights stay in its cache for all rows."""
REORDERED_SUMS: Final = {"reassoc", "contract", "nsz"}
"""Lets eight floats be summed at a time; NaN and infinity are preserved."""
SIGN_MASK: Final = int32(0x7FFFFFFF)
"""All bits of a float32 but the sign."""

binding.set_option("", "-vectorizer-maximize-bandwidth")  # multiplies 16 integers at once, not 8


def use_threads(count: int) -> None:
    """Sets the number of threads of the caller's next loops."""
    set_num_threads(min(count, config.NUMBA_NUM_THREADS))


@njit(
    "(float32[:, ::1], float32[::1], float32, float32[:, ::1])",
    fastmath=REORDERED_SUMS,
    cache=CAN_CACHE,
)
def normalize(x, weight, eps, normed):  # type: ignore[no-untyped-def]
    """Writes the rows of `x` [rows, size] to `normed`, divided by their root mean squares."""
    for row in range(len(x)):
        squares = float32(0)
        for i in range(len(weight)):
            squares += x[row, i] * x[row, i]
        factor = 1 / sqrt(squares / float32(len(weight)) + eps)
        for i in range(len(weight)):
            normed[row, i] = x[row, i] * factor * weight[i]


@njit("(float32[:, ::1], int32[:, ::1], float32, int16[:, ::1], float32[::1])", cache=CAN_CACHE)
def quantize(x, bits, max_value, values, steps):  # type: ignore[no-untyped-def]
    """Writes `x` [rows, size] as `values` of at most `max_value`, times a step for each row.

    `bits` is `x`, too: without the sign, they are in the order of numbers, infinity and NaN last.
    """
    for row in range(len(x)):
        max_bits = int32(1)
        for i in range(x.shape[1]):
            max_bits = max(max_bits, int32(bits[row, i] & SIGN_MASK))
        max_number = int32(max_bits).view(float32)
        steps[row] = max_number / max_value
        inverse = max_value / max_number
        for i in range(x.shape[1]):
            values[row, i] = int16(rint(x[row, i] * inverse))


@njit("(int16[:, ::1], float32[::1], int8[:, ::1], float32[::1], float32[:, ::1])", **PARALLEL)
def add_products(x, steps, weight, scales, sums):  # type: ignore[no-untyped-def]
    """Adds (x * steps) (weight * scales)' to `sums` [rows, channels].

    Integers are summed in 32 bits.
    """
    channels = len(weight)
    for block in prange((channels + CHANNELS_PER_BLOCK - 1) // CHANNELS_PER_BLOCK):
        first = block * CHANNELS_PER_BLOCK
        for row in range(len(x)):
            inputs = x[row]
            for channel in range(first, min(channels, first + CHANNELS_PER_BLOCK)):
                weights = weight[channel]
                total = int32(0)
                for i in range(len(inputs)):
                    total = int32(total + int32(inputs[i] * int32(weights[i])))
                sums[row, channel] += total * (scales[channel] * steps[row])


@njit("(float32[:, ::1], uint16[:, ::1], float32[:, ::1])", fastmath=REORDERED_SUMS, **PARALLEL)
def multiply_bfloat16(x, weight, product):  # type: ignore[no-untyped-def]
    """Writes x weight' [rows, channels]; the bits of a bfloat16 are the upper ones of a float32."""
    channels = len(weight)
    for block in prange((channels + CHANNELS_PER_BLOCK - 1) // CHANNELS_PER_BLOCK):
        first = block * CHANNELS_PER_BLOCK
        for row in range(len(x)):
            inputs = x[row]
            for channel in range(first, min(channels, first + CHANNELS_PER_BLOCK)):
                weights = weight[channel]
                total = float32(0)
                for i in range(len(inputs)):
                    number = uint32(uint32(weights[i]) << uint32(16)).view(float32)
                    total += inputs[i] * number
                product[row, channel] = total


@njit(
    "(f4[:,:,::1], f4[:,:,:,:,::1], i4[:,::1], i4[::1], i4[::1], f4[:,:,::1])",
    fastmath=REORDERED_SUMS,
    **PARALLEL,
)
def attend(queries, stored, tables, rows, ends, output):  # type: ignore[no-untyped-def]
    """Writes the attention of each token's `queries` to `output` [tokens, heads, dim].

    `stored` is [blocks, slots, keys or values, kv_heads, dim]. A token's row of `tables` has the
    blocks of its sequence; `ends` counts the tokens that it looks back at, itself included. Weights
    are relative to the greatest product so far; earlier sums shrink when that grows (arXiv
    1805.02867).
    """
    block_size, _, kv_heads, size = stored.shape[1:]
    heads = queries.shape[1]
    scale = float32(size**-0.5)
    for part in prange(len(queries) * heads):
        token = part // heads
        head = part % heads
        kv_head = head // (heads // kv_heads)
        query = queries[token, head]
        sums = output[token, head]
        products = empty(block_size, float32)
        max_product = float32(-inf)
        total = float32(0)
        sums[:] = 0
        for start in range(0, ends[token], block_size):
            block = stored[tables[rows[token], start // block_size]]
            count = min(block_size, ends[token] - start)
            previous_max = max_product
            for slot in range(count):
                key = block[slot, 0, kv_head]
                product = float32(0)
                for i in range(size):
                    product += query[i] * key[i]
                products[slot] = product * scale
                max_product = max(max_product, products[slot])
            shrink = exp(previous_max - max_product)
            total *= shrink
            for i in range(size):
                sums[i] *= shrink
            for slot in range(count):
                value = block[slot, 1, kv_head]
                weight = exp(products[slot] - max_product)
                total += weight
                for i in range(size):
                    sums[i] += weight * value[i]
        for i in range(size):
            sums[i] /= total

"""Loops over the numbers of a model on a CPU, compiled by numba at their first import.

Compiling takes up to ten seconds; the result is kept beside this file, or in the home folder.
"""

from __future__ import annotations

import os
from typing import Final

from llvmlite import binding
from numba import config, njit, prange, set_num_threads
from numpy import empty, exp, float32, inf, int16, int32, rint, sqrt, uint32

binding.set_option("", "-vectorizer-maximize-bandwidth")  # multiplies 16 integers at once, not 8
KEPT: Final = any(
    os.access(it, os.W_OK) for it in (os.path.dirname(__file__), os.path.expanduser("~"))
)
IN_THREADS: Final = {"parallel": True, "nogil": True, "cache": KEPT}
CHANNELS: Final = 32
"""Output channels of a thread's turn: their weights stay in its cache for all rows."""
IN_ANY_ORDER: Final = {"reassoc", "contract", "nsz"}
"""Lets eight floats be summed at a time; NaN and infinity are kept."""
WITHOUT_SIGN: Final = int32(0x7FFFFFFF)


def use_threads(count: int) -> None:
    """Sets the threads of the caller's next loops."""
    set_num_threads(min(count, config.NUMBA_NUM_THREADS))


@njit(
    "(float32[:, ::1], float32[::1], float32, float32[:, ::1])", fastmath=IN_ANY_ORDER, cache=KEPT
)
def normalize(x, weight, eps, normed):  # type: ignore[no-untyped-def]
    """Writes to `normed` the rows of `x` [rows, size], divided by the roots of their mean squares."""
    for row in range(len(x)):
        squares = float32(0)
        for place in range(len(weight)):
            squares += x[row, place] * x[row, place]
        factor = 1 / sqrt(squares / float32(len(weight)) + eps)
        for place in range(len(weight)):
            normed[row, place] = x[row, place] * factor * weight[place]


@njit("(float32[:, ::1], int32[:, ::1], float32, int16[:, ::1], float32[::1])", cache=KEPT)
def quantise(x, bits, largest, values, steps):  # type: ignore[no-untyped-def]
    """Writes `x` [rows, size] as `values` of at most `largest`, times a step for each row.

    `bits` is `x`, too: without the sign, they are in the order of numbers, infinity and NaN last.
    """
    for row in range(len(x)):
        top = int32(1)
        for place in range(x.shape[1]):
            top = max(top, int32(bits[row, place] & WITHOUT_SIGN))
        greatest = int32(top).view(float32)
        steps[row] = greatest / largest
        inverse = largest / greatest
        for place in range(x.shape[1]):
            values[row, place] = int16(rint(x[row, place] * inverse))


@njit("(int16[:, ::1], float32[::1], int8[:, ::1], float32[::1], float32[:, ::1])", **IN_THREADS)
def add_products(x, steps, weight, scales, sums):  # type: ignore[no-untyped-def]
    """Adds (x * steps) (weight * scales)' to `sums` [rows, channels].

    Integers are summed in 32 bits.
    """
    for block in prange((len(weight) + CHANNELS - 1) // CHANNELS):
        for row in range(len(x)):
            factors = x[row]
            for channel in range(block * CHANNELS, min(len(weight), (block + 1) * CHANNELS)):
                others, total = weight[channel], int32(0)
                for place in range(len(factors)):
                    total = int32(total + int32(factors[place] * int32(others[place])))
                sums[row, channel] += total * (scales[channel] * steps[row])


@njit("(float32[:, ::1], uint16[:, ::1], float32[:, ::1])", fastmath=IN_ANY_ORDER, **IN_THREADS)
def multiply_bfloat16(x, weight, product):  # type: ignore[no-untyped-def]
    """Writes x weight' [rows, channels]; the bits of a bfloat16 are the upper ones of a float32."""
    for block in prange((len(weight) + CHANNELS - 1) // CHANNELS):
        for row in range(len(x)):
            factors = x[row]
            for channel in range(block * CHANNELS, min(len(weight), (block + 1) * CHANNELS)):
                others, total = weight[channel], float32(0)
                for place in range(len(factors)):
                    total += factors[place] * uint32(uint32(others[place]) << uint32(16)).view(
                        float32
                    )
                product[row, channel] = total


@njit(
    "(f4[:,:,::1], f4[:,:,:,:,::1], i4[:,::1], i4[::1], i4[::1], f4[:,:,::1])",
    fastmath=IN_ANY_ORDER,
    **IN_THREADS,
)
def attend(queries, stored, tables, rows, ends, seen):  # type: ignore[no-untyped-def]
    """Writes to `seen` [tokens, heads, dim] what each token's `queries` find in its sequence.

    `stored` is [blocks, slots, keys or values, kv_heads, dim]. A token's row of `tables` has the
    blocks of its sequence; `ends` counts the tokens that it looks back at, itself included. Weights
    are relative to the greatest product so far; earlier sums shrink when that grows (arXiv
    1805.02867).
    """
    block_size, _, kv_heads, size = stored.shape[1:]
    heads, scale = queries.shape[1], float32(size**-0.5)
    for part in prange(len(queries) * heads):
        token, head = part // heads, part % heads
        kv_head = head // (heads // kv_heads)
        query, sums, products = queries[token, head], seen[token, head], empty(block_size, float32)
        top, total = float32(-inf), float32(0)
        sums[:] = 0
        for start in range(0, ends[token], block_size):
            block = stored[tables[rows[token], start // block_size]]
            count, before = min(block_size, ends[token] - start), top
            for place in range(count):
                key, product = block[place, 0, kv_head], float32(0)
                for number in range(size):
                    product += query[number] * key[number]
                products[place] = product * scale
                top = max(top, products[place])
            kept = exp(before - top)
            total *= kept
            for number in range(size):
                sums[number] *= kept
            for place in range(count):
                value, weight = block[place, 1, kv_head], exp(products[place] - top)
                total += weight
                for number in range(size):
                    sums[number] += weight * value[number]
        for number in range(size):
            sums[number] /= total

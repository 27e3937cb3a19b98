"""Constants of latent attention and of layers with a state, by device.

`python research/fit_layers.py DEVICE` fitted them to tables of operators of vLLM 0.24, unless a
comment has another source. A device without such a table is absent.
"""

from collections.abc import Mapping

from app.extensions.costs.kernels import LatentAttention, Recurrence

UNFUSED_US = 50.0
"""Additional time in older tables, whose norms, rotations and copies are not fused.

B200 and GB300 have newer tables of latent attention, 13.8 and 12.5 us, and B300 and GB200 older
ones, 62 and 64 us. The difference is subtracted from all older tables.
"""
HOPPER_HEADS = 64
BLACKWELL_HEADS = 128
LATENT: Mapping[str, LatentAttention] = {
    "h100": LatentAttention(
        decode_us=63 - UNFUSED_US,
        memory=0.89,
        fp8_memory=0.86,
        decode_compute=0.674,
        sequence_us=0.12,
        compute=0.69,
        prefill_us=30,
    ),
    "h200": LatentAttention(
        decode_us=61 - UNFUSED_US,
        memory=0.92,
        fp8_memory=0.66,
        decode_compute=0.69,
        sequence_us=0.11,
        compute=0.70,
        prefill_us=30,
    ),
    "b200": LatentAttention(
        decode_us=13.8,
        memory=0.669,
        fp8_memory=0.79,
        decode_compute=0.591,
        sequence_us=0.104,
        compute=0.73,
        prefill_us=30,
    ),
    "b300": LatentAttention(
        decode_us=62 - UNFUSED_US,
        memory=0.707,
        fp8_memory=0.767,
        decode_compute=0.568,
        sequence_us=0.104,
        compute=0.73,
        prefill_us=30,
    ),
    "gb200": LatentAttention(
        decode_us=64 - UNFUSED_US,
        memory=0.704,
        fp8_memory=0.775,
        decode_compute=0.526,
        sequence_us=0.104,
        compute=0.66,
        prefill_us=30,
    ),
    "gb300": LatentAttention(
        decode_us=12.5,
        memory=0.679,
        fp8_memory=0.749,
        decode_compute=0.531,
        sequence_us=0.101,
        compute=0.66,
        prefill_us=30,
    ),
    # Without tables for fp8, whose numbers are unpacked: as slow as with 16 bits.
    "rtx-pro-6000": LatentAttention(
        decode_us=47.5,
        memory=0.735,
        fp8_memory=0.367,
        decode_compute=0.092,
        sequence_us=0.121,
        compute=0.36,
        prefill_us=30,
    ),
    "l40s": LatentAttention(
        decode_us=30.6,
        memory=0.721,
        fp8_memory=0.36,
        decode_compute=0.094,
        sequence_us=0.119,
        compute=0.36,
        prefill_us=30,
    ),
}
SPARSE_LATENT: Mapping[str, LatentAttention] = {
    "h100": LatentAttention(
        decode_us=148 - UNFUSED_US,
        memory=0.878,
        fp8_memory=1.0,
        decode_compute=0.473,
        sequence_us=0.251,
        compute=0.58,
        prefill_us=60,
        index_memory=0.69,
        least_heads=HOPPER_HEADS,
    ),
    "h200": LatentAttention(
        decode_us=141 - UNFUSED_US,
        memory=0.857,
        fp8_memory=1.0,
        decode_compute=0.538,
        sequence_us=0.227,
        compute=0.6,
        prefill_us=60,
        index_memory=0.685,
        least_heads=HOPPER_HEADS,
    ),
    "b200": LatentAttention(
        decode_us=132 - UNFUSED_US,
        memory=0.664,
        fp8_memory=0.777,
        decode_compute=0.396,
        sequence_us=0.288,
        compute=0.518,
        prefill_us=60,
        index_memory=0.64,
        least_heads=BLACKWELL_HEADS,
    ),
    "b300": LatentAttention(
        decode_us=128 - UNFUSED_US,
        memory=0.688,
        fp8_memory=0.821,
        decode_compute=0.395,
        sequence_us=0.273,
        compute=0.518,
        prefill_us=60,
        index_memory=0.66,
        least_heads=BLACKWELL_HEADS,
    ),
    "gb200": LatentAttention(
        decode_us=130 - UNFUSED_US,
        memory=0.683,
        fp8_memory=0.807,
        decode_compute=0.373,
        sequence_us=0.267,
        compute=0.45,
        prefill_us=60,
        index_memory=0.658,
        least_heads=BLACKWELL_HEADS,
    ),
    "gb300": LatentAttention(
        decode_us=125 - UNFUSED_US,
        memory=0.683,
        fp8_memory=0.806,
        decode_compute=0.373,
        sequence_us=0.261,
        compute=0.45,
        prefill_us=60,
        index_memory=0.657,
        least_heads=BLACKWELL_HEADS,
    ),
}
"""With chosen tokens."""
RECURRENCE: Mapping[str, Recurrence] = {
    "h100": Recurrence(decode_us=5.3, memory=0.474, compute=0.091, prefill_us=24),
    "h200": Recurrence(decode_us=5.5, memory=0.439, compute=0.097, prefill_us=24),
    "b200": Recurrence(decode_us=5.8, memory=0.407, compute=0.047, prefill_us=31),
    "b300": Recurrence(decode_us=5.4, memory=0.428, compute=0.048, prefill_us=30),
    "gb200": Recurrence(decode_us=6.0, memory=0.425, compute=0.044, prefill_us=30),
    "gb300": Recurrence(decode_us=5.9, memory=0.426, compute=0.044, prefill_us=31),
    "rtx-pro-6000": Recurrence(decode_us=4.5, memory=1.0, compute=0.058, prefill_us=25),
    "l40s": Recurrence(decode_us=4.2, memory=1.0, compute=0.043, prefill_us=17),
}
"""From the table of linear attention; state-space layers move their states at the same rate."""

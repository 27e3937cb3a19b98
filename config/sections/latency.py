"""When it is said."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.kinds import Duration
from config.rules import at_least, not_above_share, not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """When it is said."""

    latency_calculator: Literal["", "constant", "per-token"] = setting(
        "",
        live=True,
        help="What the time to the first token is computed from: time-to-first-token (constant) or the "
        "prompt's length (per-token). Empty is constant if time-to-first-token or its deviation is set, "
        "per-token otherwise.",
    )
    inter_token_latency: Duration = setting(
        0.0, live=True, help="Time between two tokens of a reply.", rule=not_negative()
    )
    inter_token_latency_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of inter-token-latency.",
        rule=(not_negative(), not_above_share(30, of="inter_token_latency")),
    )
    time_to_first_token: Duration = setting(
        0.0, live=True, help="Time from admission to the first token.", rule=not_negative()
    )
    time_to_first_token_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of time-to-first-token.",
        rule=(not_negative(), not_above_share(30, of="time_to_first_token")),
    )
    prefill_overhead: Duration = setting(
        0.0, live=True, help="Constant part of the prefill (per-token calculator).", rule=not_negative()
    )
    prefill_time_per_token: Duration = setting(
        0.0,
        live=True,
        help="Prefill time of each prompt token that is not cached (per-token calculator).",
        rule=not_negative(),
    )
    prefill_time_std_dev: Duration = setting(
        0.0, live=True, help="Standard deviation of the prefill (per-token calculator).", rule=not_negative()
    )
    time_factor_under_load: float = setting(
        1.0,
        live=True,
        help="Latencies are this many times longer when all max-num-seqs places are taken, and grow linearly "
        "from 1 before.",
        rule=at_least(1.0),
    )
    kv_cache_transfer_latency: Duration = setting(
        0.0,
        live=True,
        help="Time to first token of a request whose prefill was done elsewhere (constant calculator).",
        rule=not_negative(),
    )
    kv_cache_transfer_latency_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of kv-cache-transfer-latency.",
        rule=(not_negative(), not_above_share(30, of="kv_cache_transfer_latency")),
    )
    kv_cache_transfer_time_per_token: Duration = setting(
        0.0,
        live=True,
        help="Transfer time of each prompt token of such a request (per-token calculator).",
        rule=not_negative(),
    )
    kv_cache_transfer_time_std_dev: Duration = setting(
        0.0, live=True, help="Standard deviation of the transfer (per-token calculator).", rule=not_negative()
    )
    time_to_generate_image: Duration = setting(
        0.0, live=True, help="Time that an image takes after the last token.", rule=not_negative()
    )
    time_to_generate_image_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of time-to-generate-image.",
        rule=(not_negative(), not_above_share(30, of="time_to_generate_image")),
    )

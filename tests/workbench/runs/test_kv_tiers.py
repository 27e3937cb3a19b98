"""Tiers of a simulated KV cache."""

from typing import Any

import msgspec
import pytest

from workbench.runs.simulate import run

LOAD = ["--rate", "2", "--seconds", "120", "--input-tokens", "200", "--output-tokens", "20"]
SMALL = [*LOAD, "--prefix-groups", "40", "--prefix-tokens", "4000", "--json", "-"]
CACHE = ["--num-gpu-blocks-override", "2000", "--max-model-len", "8192"]

TWO_TIERS = ["--kv-tiers", "cpu=5GB@50GB/s", "disk=1TB@5GB/s"]


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(argv) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_large_kv_tier_keeps_blocks_that_the_gpu_evicts(capsys: pytest.CaptureFixture[str]) -> None:
    without = figures(capsys, *SMALL, *CACHE)
    tiered = figures(capsys, *SMALL, *CACHE, "--kv-tiers", "cpu=200GB@50GB/s")
    roomy = figures(capsys, *SMALL)

    [tier] = tiered["tiers"]
    assert without["cached_tokens"] < tiered["cached_tokens"] == roomy["cached_tokens"]
    assert tier["tokens"] > 0
    assert tier["bytes"] == pytest.approx(tier["tokens"] * 163_840)
    assert tiered["ttft_s"]["mean"] < without["ttft_s"]["mean"]


def test_slower_kv_tier_increases_the_time_to_first_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fast = figures(capsys, *SMALL, *CACHE, "--kv-tiers", "cpu=200GB@500GB/s")
    slow = figures(capsys, *SMALL, *CACHE, "--kv-tiers", "cpu=200GB@2GB/s")

    moved_s = 4000 * 163_840 / 2e9
    assert slow["ttft_s"]["p90"] > fast["ttft_s"]["p90"] + 0.5 * moved_s


def test_disk_provides_blocks_that_a_full_first_tier_has_evicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiered = figures(capsys, *SMALL, *CACHE, *TWO_TIERS)

    cpu, disk = tiered["tiers"]
    assert cpu["tokens"] > 0 and disk["tokens"] > 0
    assert tiered["cached_tokens"] == figures(capsys, *SMALL)["cached_tokens"]


def test_kv_tier_smaller_than_a_block_does_not_change_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    without = figures(capsys, *SMALL, *CACHE)
    tiered = figures(capsys, *SMALL, *CACHE, "--kv-tiers", "cpu=1B@50GB/s")

    assert tiered.pop("tiers")[0]["tokens"] == 0
    assert tiered == without


def test_eviction_policy_and_store_threshold_change_what_the_first_tier_provides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tier = [*SMALL, *CACHE, "--kv-tiers", "cpu=10GB@50GB/s"]
    lru = figures(capsys, *tier)["tiers"][0]["tokens"]
    arc = figures(capsys, *tier, "--kv-offload-policy", "arc")["tiers"][0]["tokens"]
    threshold = figures(capsys, *tier, "--kv-offload-store-threshold", "2")["tiers"][0]["tokens"]
    assert len({lru, arc, threshold}) == 3
    assert min(lru, arc, threshold) > 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--kv-tiers", "cpu=200GB"], "must be NAME=SIZE@BANDWIDTH/s"),
        (["--kv-tiers", "cpu=1GB@1GB/s", "cpu=2GB@1GB/s"], "each tier must have a unique name"),
        (["--kv-tiers", "cpu=1GB@1GB/s", "--no-enable-prefix-caching"], "requires prefix caching"),
        (["--kv-tiers", "cpu=many@1GB/s"], "many"),
        (
            ["--kv-tiers", "cpu=1GB@1GB/s", "disk=2GB@1GB/s", "s3=1TB@1GB/s"],
            "vLLM has two tiers, the host's memory and then a disk; 3 were specified",
        ),
        (
            [*TWO_TIERS, "--kv-offload-store-threshold", "2"],
            "--kv-offload-store-threshold cannot be combined with a second tier",
        ),
        (["--kv-offload-policy", "fifo"], "fifo"),
    ],
)
def test_invalid_kv_tiers_are_rejected_with_a_one_line_error(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--rate", "1", "--seconds", "2", *flags]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err

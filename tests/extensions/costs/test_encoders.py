"""Costs of encoders."""

import pytest

from app.extensions.costs.encoders import SheetRates, encoder_seconds
from vllm_facts.encoder import Encoder

RATES = SheetRates(flops=1e12, attention_flops=1e11)
ENCODER = Encoder(layers=10, width=100, inner_width=400)
PATCH_OPERATIONS = 2 * 10 * (4 * 100 * 100 + 2 * 100 * 400)
PAIR_OPERATIONS = 4 * 10 * 100


def test_embedding_takes_two_operations_for_each_parameter_and_patch() -> None:
    seconds = encoder_seconds(ENCODER, RATES, 1)
    assert seconds.embedding == pytest.approx(PATCH_OPERATIONS / 1e12)
    assert seconds.embedding_pair == pytest.approx(PAIR_OPERATIONS / 1e11)


def test_merged_patches_multiply_the_cost_of_an_embedding() -> None:
    merged = Encoder(layers=10, width=100, inner_width=400, merged_patches=4)
    seconds = encoder_seconds(merged, RATES, 1)
    assert seconds.embedding == pytest.approx(4 * PATCH_OPERATIONS / 1e12)
    assert seconds.embedding_pair == pytest.approx(16 * PAIR_OPERATIONS / 1e11)


def test_window_limits_the_pairs() -> None:
    windowed = Encoder(layers=10, width=100, inner_width=400, window=64, full_layers=2)
    seconds = encoder_seconds(windowed, RATES, 1)
    pair_s = PAIR_OPERATIONS / 1e11
    assert seconds.embedding == pytest.approx(PATCH_OPERATIONS / 1e12 + 0.8 * 64 * pair_s)
    assert seconds.embedding_pair == pytest.approx(0.2 * pair_s)


def test_devices_share_an_encoder_but_not_its_launches() -> None:
    one = encoder_seconds(ENCODER, RATES, 1)
    two = encoder_seconds(ENCODER, RATES, 2)
    assert two.embedding == pytest.approx(one.embedding / 2)
    assert two.embedding_pair == pytest.approx(one.embedding_pair / 2)
    assert two.step == one.step == pytest.approx(10 * 250e-6)

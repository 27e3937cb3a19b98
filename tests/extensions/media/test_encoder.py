"""The encoder budget of a server."""

from typing import Any

import pytest
from msgspec.structs import replace

from app.core.engine.profile import read_profile
from app.core.settings import load
from app.extensions.media import Media
from app.extensions.media.encoder import encoder_limits, encoder_seconds, largest_item
from app.shared.step_policies.encoder_budget import EncoderLimits
from config.declaration import ConfigError
from tests.application import app_of
from tests.extensions.media.images import data_url, image_part, png

VISION = "Qwen/Qwen2.5-VL-7B-Instruct"
LARGEST = 16_384
"""Embeddings of an image with the 12,845,056 pixels that the model's processor keeps."""


def limits_of(*flags: str) -> EncoderLimits | None:
    return encoder_limits(load(("--model", VISION, *flags), {}))


@pytest.mark.parametrize(("tokens", "budget"), [(8192, LARGEST), (20_000, 20_000)])
def test_budget_has_room_for_a_step_and_for_the_largest_image(tokens: int, budget: int) -> None:
    limits = limits_of("--max-num-batched-tokens", str(tokens))
    assert limits == EncoderLimits(budget=budget, cache_size=budget)


def test_arguments_of_the_processor_count_for_the_largest_image() -> None:
    limits = limits_of(
        "--max-num-batched-tokens", "100", "--mm-processor-kwargs", '{"max_pixels": 401408}'
    )
    assert limits is not None
    assert limits.budget == 512


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "Qwen/Qwen3-0.6B"),
        ("--multimodal=false",),
        ("--limit-mm-per-prompt", '{"image": 0}'),
    ],
    ids=["text model", "rejects media", "no images"],
)
def test_server_without_images_has_no_budget(flags: tuple[str, ...]) -> None:
    assert limits_of(*flags) is None


def test_largest_sound_counts() -> None:
    settings = load(("--model", "Qwen/Qwen2-Audio-7B-Instruct"), {})
    assert largest_item(settings) == 750


def test_largest_image_that_no_step_holds_stops_the_start() -> None:
    flags = ("--model", VISION, "--disable-chunked-mm-input", "--max-num-batched-tokens")
    with pytest.raises(ConfigError, match=r"disable-chunked-mm-input.* 16384 tokens.*\(8192\)"):
        Media.prepare(load((*flags, "8192"), {}))
    Media.prepare(load((*flags, "16384"), {}))


def test_server_with_steps_answers_requests_with_equal_and_different_images() -> None:
    client = app_of("--model", VISION, "--timing", "steps").test_client()
    small = image_part(data_url(png(672, 448)))
    large = image_part(data_url(png(1288, 966)))
    for parts in ([small], [small, large, small], [large]):
        content: list[Any] = [*parts, {"type": "text", "text": "What is this?"}]
        messages = [{"role": "user", "content": content}]
        answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})
        assert answer.status_code == 200
        assert answer.get_json()["usage"]["completion_tokens"] == 2


def test_encoder_of_a_server_has_the_costs_of_its_profile() -> None:
    text = read_profile("qwen3-14b-h100")
    cost = replace(text.cost, encoder=0.01, per_embedding=1e-5, per_embedding_pair=1e-9)
    costs = encoder_seconds(replace(text, cost=cost))
    assert (costs.step, costs.embedding, costs.embedding_pair) == (0.01, 1e-5, 1e-9)
    assert costs.of([16]) == 0.01
    assert costs.of([1024]) == pytest.approx(1024 * 1e-5 + 1024**2 * 1e-9)
    assert encoder_seconds(text).of([1024]) == 0

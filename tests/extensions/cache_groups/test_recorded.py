"""The cache of a hybrid model against recordings of vLLM's KV cache manager."""

import pytest

from app.extensions.cache_groups.layers import GROUP_KINDS, group_layers
from tests.extensions.cache_groups.replay import RECORDED, Replay, read_example
from vllm_facts.layer_groups import KEPT
from vllm_facts.model_shape import ModelShape

EXAMPLES = sorted(path.stem for path in RECORDED.glob("*.json"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_result_of_each_recorded_cache_operation_equals_that_of_vllm(name: str) -> None:
    example = read_example(name)
    replay = Replay(example)

    for number, operation in enumerate(example["operations"]):
        result = replay.result(operation)

        assert result == operation["result"], f"operation {number}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_layers_are_grouped_as_in_vllm(name: str) -> None:
    example = read_example(name)
    model = example["model"]

    groups = group_layers(
        ModelShape(layer_types=model["layer_types"], sliding_window=model["sliding_window"] or 0)
    )

    kinds = [GROUP_KINDS[KEPT[group["kind"]]] for group in example["groups"]]
    assert [group.kind for group in groups] == kinds

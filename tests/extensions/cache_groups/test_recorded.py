"""The cache of a hybrid model against recordings of vLLM's KV cache manager."""

import pytest

from app.extensions.cache_groups.layers import KINDS, LayerConfig, group_layers
from tests.extensions.cache_groups.replay import RECORDED, Replay, read_example

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

    groups = group_layers(LayerConfig(model["layer_types"], model["sliding_window"]))

    assert [group.kind for group in groups] == [KINDS[group["kind"]] for group in example["groups"]]

"""`serve MODEL --profile auto`: the profile of the model that is named."""

import re
from urllib.request import urlopen

from app.extensions.costs.datasheet import profile_of
from app.extensions.costs.engine_options import EngineOptions
from tests.running_server import running_image


def test_profile_auto_of_serve_is_computed_for_the_named_model() -> None:
    profile = profile_of(
        "auto", "h200", "Qwen/Qwen3-14B", EngineOptions(tensor_parallel_size=2), limits={}
    )
    words = ("serve", "Qwen/Qwen3-14B", "--profile", "auto", "-tp", "2")
    with (
        running_image(*words, env={"SIM_DEVICE": "h200", "HF_HUB_OFFLINE": "1"}) as server,
        urlopen(f"{server.url}/metrics") as answer,
    ):
        metrics = answer.read().decode()
    match = re.search(r'cache_config_info{.*num_gpu_blocks="(\d+)"', metrics)
    assert match is not None
    assert int(match[1]) == profile.engine.num_gpu_blocks

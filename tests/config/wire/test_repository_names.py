"""Models that the README, manifests, workflows and tests name start in a checkout, offline."""

import pytest
import requests

from tests.running_server import running_image
from tests.vllm_facts.test_repository_names import names

NOT_MODELS = ("HTTP/1.1",)
SHORT = ("tiny", "understudy")
MODELS = sorted(name for name in names() if name in SHORT or "/" in name)
OFFLINE = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "HF_ENDPOINT", "http_proxy", "https_proxy"), "http://127.0.0.1:9"
)
"""Variables with which a request to another machine fails."""


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_MODELS])
def test_name_that_the_repository_uses_starts_without_internet(name: str) -> None:
    with running_image("serve", name, env=OFFLINE) as server:
        answer = requests.get(
            f"http://127.0.0.1:{server.port}/v1/models", timeout=20, proxies={"http": ""}
        )
        assert answer.json()["data"][0]["id"] == name

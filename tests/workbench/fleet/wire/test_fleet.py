"""Real pods and a real indexer: routing by prefix finds what is cached, also behind the proxy."""

import json
from argparse import Namespace
from collections.abc import Callable
from random import Random

import pytest

from app.extensions.plugins.policies import Incoming
from tests import stubs
from workbench.fleet.command import compare_policies, policies_of, running_proxy
from workbench.fleet.fleet import Fleet
from workbench.fleet.workload import Workload

POLICIES = policies_of((), {})
RULES = {"role": "system", "content": "Answer as briefly as you can, and then more briefly. " * 20}
SHARED_PROMPT = "A prompt that comes again and again, for there is no other. " * 20


def completion(
    address: str, body: dict[str, object], path: str = "/v1/completions"
) -> tuple[str, int]:
    """The pod that answered, and the cached tokens in its answer."""
    with stubs.posted(address, {"max_tokens": 1, **body}, path) as response:
        answer = json.load(response)
        assert response.status == 200, answer
        details = answer["usage"]["prompt_tokens_details"] or {}
        return response.getheader("x-routed-to") or "", details.get("cached_tokens") or 0


def test_every_routing_policy_serves_the_whole_workload_without_failures(
    fleet: Fleet, workload: Workload, options: Namespace
) -> None:
    summaries_of_policies = compare_policies(fleet, workload, options, POLICIES)
    summaries = {summary.policy: summary for summary in summaries_of_policies}
    assert list(summaries) == ["random", "round-robin", "prefix-aware"]
    for summary in summaries.values():
        assert (summary.requests, summary.failed, summary.fallbacks, summary.errors) == (
            24,
            0,
            0,
            (),
        )
        assert sum(summary.per_pod.values()) == len(summary.ttfts_s) == 24
        assert 0 < summary.cached_share < 1
    assert set(summaries["round-robin"].per_pod.values()) == {12}


def text_prompt(number: int) -> dict[str, object]:
    return {"prompt": f"{SHARED_PROMPT} {number}"}


def chat_prompt(number: int) -> dict[str, object]:
    return {"messages": [RULES, {"role": "user", "content": f"Question {number}?"}]}


def token_prompt(number: int) -> dict[str, object]:
    return {"prompt": [*range(300, 600), number]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", text_prompt),
        ("/v1/chat/completions", chat_prompt),
        ("/v1/completions", token_prompt),
    ],
)
def test_prompts_are_routed_to_the_pod_that_cached_them(
    fleet: Fleet, path: str, body: Callable[[int], dict[str, object]]
) -> None:
    with running_proxy(fleet, POLICIES["prefix-aware"], Random(1)) as (address, proxy):
        home, cached = completion(address, body(0), path)
        assert cached == 0
        fleet.wait_for_index()
        for number in range(1, 5):
            pod, cached = completion(address, body(number), path)
            assert pod == home and cached > 100
        assert proxy.policy.fallbacks == 0


def test_clearing_the_caches_clears_the_index(fleet: Fleet) -> None:
    body = {"prompt": "Soon forgotten, as so much before it has been. " * 20}
    incoming = Incoming("/v1/completions", json.dumps(body).encode())
    with running_proxy(fleet, POLICIES["round-robin"], Random(1)) as (address, _):
        completion(address, body)
    fleet.wait_for_index()
    assert fleet.indexer.scores(incoming)
    fleet.clear_caches()
    assert not fleet.indexer.scores(incoming)

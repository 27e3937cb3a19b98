"""Real pods and a real indexer: routing by prefix finds what is cached, also behind the proxy."""

import json
from argparse import Namespace
from collections.abc import Callable
from random import Random

import pytest

from app.extensions.lab.fleet.command import compare_policies, policies_of, running_proxy
from app.extensions.lab.fleet.fleet import Fleet
from app.extensions.lab.fleet.workload import Workload
from app.extensions.plugins.policies import Incoming
from tests import stubs

POLICIES = policies_of((), {})


def completion(
    address: str, body: dict[str, object], path: str = "/v1/completions"
) -> tuple[str, int]:
    """The pod that answered, and the cached tokens that it tells of."""
    with stubs.posted(address, {"max_tokens": 1, **body}, path) as response:
        answer = json.load(response)
        assert response.status == 200, answer
        details = answer["usage"]["prompt_tokens_details"] or {}
        return response.getheader("x-routed-to") or "", details.get("cached_tokens") or 0


def test_every_policy_gets_the_whole_workload(
    fleet: Fleet, workload: Workload, options: Namespace
) -> None:
    played = compare_policies(fleet, workload, options, POLICIES)
    summaries = {at.policy: at for at in played}
    assert list(summaries) == ["random", "round-robin", "prefix-aware"]
    for at in summaries.values():
        assert (at.requests, at.failed, at.fallbacks, at.errors) == (24, 0, 0, ())
        assert sum(at.per_pod.values()) == len(at.ttfts_s) == 24
        assert 0 < at.cached_share < 1
    assert set(summaries["round-robin"].per_pod.values()) == {12}


RULES = {"role": "system", "content": "Answer as briefly as you can, and then more briefly. " * 20}
AGAIN = "A prompt that comes again and again, for there is no other. " * 20
FORMS: dict[str, Callable[[int], dict[str, object]]] = {
    "/v1/completions": lambda k: {"prompt": f"{AGAIN} {k}"},
    "/v1/chat/completions": lambda k: {
        "messages": [RULES, {"role": "user", "content": f"Question {k}?"}]
    },
    "/v1/completions?ids": lambda k: {"prompt": [*range(300, 600), k]},
}


@pytest.mark.parametrize("form", FORMS)
def test_prompts_are_routed_to_the_pod_that_cached_them(fleet: Fleet, form: str) -> None:
    path, body = form.partition("?")[0], FORMS[form]
    with running_proxy(fleet, POLICIES["prefix-aware"], Random(1)) as (address, proxy):
        home, cached = completion(address, body(0), path)
        assert cached == 0
        fleet.wait_for_index()
        for number in range(1, 5):
            pod, cached = completion(address, body(number), path)
            assert pod == home and cached > 100
        assert proxy.policy.fallbacks == 0


def test_cleared_caches_are_cleared_in_the_index(fleet: Fleet) -> None:
    body = {"prompt": "Soon forgotten, as so much before it has been. " * 20}
    asked = Incoming("/v1/completions", json.dumps(body).encode())
    with running_proxy(fleet, POLICIES["round-robin"], Random(1)) as (address, _):
        completion(address, body)
    fleet.wait_for_index()
    assert fleet.indexer.scores(asked)
    fleet.clear_caches()
    assert not fleet.indexer.scores(asked)

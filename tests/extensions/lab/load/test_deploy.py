"""The autoscaler of the Kubernetes manifests."""

import re

from app.extensions.lab.load.autoscale_flags import read_policy
from app.extensions.lab.load.hpa import HorizontalPodAutoscaler
from tests.test_deploy import DEPLOYMENTS, FOLDER, OBJECTS, container


def test_the_autoscaler_is_the_policy_that_the_comment_simulates() -> None:
    text = (FOLDER / "autoscaled.yaml").read_text()
    found = re.search(r"--autoscale (\S+) --cold-start (\S+)\n", text)
    assert found is not None
    policy = read_policy(found[1], {})
    assert isinstance(policy, HorizontalPodAutoscaler)
    [spec] = [each["spec"] for each in OBJECTS if each["kind"] == "HorizontalPodAutoscaler"]
    assert spec["scaleTargetRef"]["name"] in DEPLOYMENTS
    assert (spec["minReplicas"], spec["maxReplicas"]) == (policy.min_pods, policy.max_pods)
    [pods] = [metric["pods"] for metric in spec["metrics"]]
    assert pods["metric"]["name"] == f"vllm_num_requests_{policy.metric}"
    assert float(pods["target"]["averageValue"]) == policy.target
    windows = policy.window_up, policy.window_down
    ways = zip(("scaleUp", "scaleDown"), (policy.up, policy.down), windows, strict=True)
    for name, rates, window_s in ways:
        behavior = spec["behavior"][name]
        assert (
            behavior["stabilizationWindowSeconds"] == window_s and behavior["selectPolicy"] == "Max"
        )
        given = [
            (it["value"], it["type"] == "Percent", it["periodSeconds"])
            for it in behavior["policies"]
        ]
        assert given == list(rates)
    given = {each["name"]: each.get("value") for each in container("understudy-autoscaled")["env"]}
    assert given["SIM_STARTUP_DURATION"] == found[2]
    assert "replicas" not in DEPLOYMENTS["understudy-autoscaled"]["spec"]

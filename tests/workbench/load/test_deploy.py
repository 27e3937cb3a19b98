"""The autoscaler of the Kubernetes manifests."""

import re

from tests.test_deploy import DEPLOYMENTS, FOLDER, OBJECTS, container
from workbench.load.autoscale_flags import read_policy
from workbench.load.hpa import HorizontalPodAutoscaler


def test_autoscaler_manifest_matches_the_simulated_policy() -> None:
    text = (FOLDER / "autoscaled.yaml").read_text()
    flags = re.search(r"--autoscale (\S+) --cold-start (\S+)\n", text)
    assert flags is not None
    policy = read_policy(flags[1], {})
    assert isinstance(policy, HorizontalPodAutoscaler)
    [spec] = [entry["spec"] for entry in OBJECTS if entry["kind"] == "HorizontalPodAutoscaler"]
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
        manifest_rates = [
            (rule["value"], rule["type"] == "Percent", rule["periodSeconds"])
            for rule in behavior["policies"]
        ]
        assert manifest_rates == list(rates)
    variables = container("understudy-autoscaled")["env"]
    environment = {entry["name"]: entry.get("value") for entry in variables}
    assert environment["SIM_STARTUP_DURATION"] == flags[2]
    assert "replicas" not in DEPLOYMENTS["understudy-autoscaled"]["spec"]

"""The routes of trainers and of elastic scaling:

status, bodies, and what a session of updates refuses.
"""

from typing import Any

from flask.testing import FlaskClient

from scripts.surface import is_flag
from tests.application import app_of

RANKS = ("--data-parallel-size", "2", "--data-parallel-rank", "0")
DEV = ("--server-dev-mode", "--force-dummy-tokenizer", *RANKS)
TRAINED = (
    *DEV,
    "--weight-transfer",
    "--tensor-parallel-size",
    "2",
    *filter(is_flag, ("--enable-scale-out",)),
)
BAD = "Bad Request"
INTERNAL = "InternalServerError"


def client_of(*flags: str) -> FlaskClient:
    return app_of(*flags).test_client()


def ask(client: FlaskClient, path: str, body: object = None) -> tuple[int, Any]:
    got = client.post(path) if body is None else client.post(path, json=body)
    return got.status_code, got.get_json()


def refused(answer: tuple[int, Any]) -> tuple[int, str, str | None]:
    return answer[0], answer[1]["error"]["type"], answer[1]["error"]["param"]


REFUSALS: list[tuple[str, object, tuple[int, str, str | None]]] = [
    ("/init_weight_transfer_engine", None, (400, BAD, "body.init_info")),
    ("/update_weights", {"update_info": "x"}, (400, BAD, "body.update_info")),
    ("/update_weight_version", {}, (400, BAD, "body.new_version")),
    ("/finish_weight_update", {"weight_version": 1}, (400, BAD, "body.weight_version")),
    ("/weight_checker", {"action": "zero"}, (400, BAD, "body.action")),
    ("/weight_checker", {"action": "compare"}, (400, BAD, None)),
    ("/weight_checker", {"action": "compare", "baseline": {"a": 1}}, (400, BAD, "body.baseline.a")),
    ("/collective_rpc", {}, (400, BAD, None)),
    ("/collective_rpc", {"method": "steal"}, (500, INTERNAL, None)),
    ("/scale_elastic_ep", {"new_data_parallel_size": "2"}, (400, BAD, None)),
    ("/scale_elastic_ep", {"new_data_parallel_size": 2, "drain_timeout": 0}, (400, BAD, None)),
    ("/scale_elastic_ep", {"new_data_parallel_size": 3}, (500, "Internal Server Error", None)),
    # Without --weight-transfer-config:
    ("/init_weight_transfer_engine", {"init_info": {}}, (500, INTERNAL, None)),
    ("/start_weight_update", None, (500, INTERNAL, None)),
    ("/finish_weight_update", None, (500, INTERNAL, None)),
]


def test_weight_updates_are_rejected_if_there_is_no_weight_transfer_engine() -> None:
    client = client_of(*DEV)
    for path, body, expected in REFUSALS:
        assert refused(ask(client, path, body)) == expected, (path, body)


def test_weight_update_routes_are_off_by_default() -> None:
    paths = {route.path for route in app_of("--force-dummy-tokenizer").routes}
    assert paths >= {"/scale_elastic_ep", "/is_scaling_elastic_ep"}
    assert paths.isdisjoint(
        {"/collective_rpc", "/weight_info", "/update_weights", "/get_world_size"}
    )
    pooled = {route.path for route in app_of(*DEV, "--task", "embed").routes}
    assert pooled >= {"/weight_info", "/tokenize"}
    assert pooled.isdisjoint({"/scale_elastic_ep"})


def test_weight_update_session_follows_the_protocol_of_vllm() -> None:
    client = client_of(*TRAINED)
    failed = (500, INTERNAL, None)
    assert refused(ask(client, "/update_weights", {"update_info": {}})) == failed
    assert ask(client, "/start_weight_update") == (200, {"message": "Weight update started"})
    assert refused(ask(client, "/start_weight_update")) == failed
    assert refused(ask(client, "/shutdown_weight_transfer_engine")) == failed
    # No trainer is connected: the update fails, which ends it.
    assert refused(ask(client, "/update_weights", {"update_info": {}})) == failed
    assert refused(ask(client, "/finish_weight_update")) == failed
    initialized = {"message": "Weight transfer initialized"}
    assert ask(client, "/init_weight_transfer_engine", {"init_info": {}}) == (200, initialized)
    checksums_before = ask(client, "/weight_checker", {"action": "checksum"})[1]["checksums"]
    ask(client, "/start_weight_update")
    assert ask(client, "/update_weights", {"update_info": [{}, {}]}) == (
        200,
        {"message": "Weights updated"},
    )
    finished = {"message": "Weight update finished"}
    assert ask(client, "/finish_weight_update", {"weight_version": "7"}) == (200, finished)
    assert client.get("/weight_info").get_json() == {"weight_version": "7"}
    compared = ask(client, "/weight_checker", {"action": "compare", "baseline": checksums_before})[
        1
    ]
    assert compared == {"match": False, "mismatches": sorted(checksums_before)}
    assert refused(ask(client, "/start_draft_weight_update")) == failed
    shut = {"message": "Weight transfer shut down"}
    assert ask(client, "/shutdown_weight_transfer_engine") == (200, shut)


def test_world_size_is_the_number_of_parallel_ranks() -> None:
    client = client_of(*TRAINED)
    assert client.get("/get_world_size").get_json() == {"world_size": 4}
    assert client.get("/get_world_size?include_dp=no").get_json() == {"world_size": 2}
    wrong = client.get("/get_world_size?include_dp=some")
    assert refused((wrong.status_code, wrong.get_json())) == (400, BAD, "query.include_dp")
    assert ask(client, "/collective_rpc", {"method": "sleep", "args": ["1"]})[1] == {
        "results": [None, None]
    }
    scaled = {"message": "Scaled to 2 data parallel engines"}
    assert ask(client, "/scale_elastic_ep", {"new_data_parallel_size": 2}) == (200, scaled)
    assert ask(client, "/is_scaling_elastic_ep") == (200, {"is_scaling_elastic_ep": False})


def test_version_0_33_reports_the_phase_of_elastic_scaling() -> None:
    client = client_of("--vllm-version", "0.33", "--force-dummy-tokenizer")
    status = {
        "is_scaling_elastic_ep": False,
        "phase": "idle",
        "epoch": None,
        "error": None,
        "requested_data_parallel_size": None,
    }
    assert ask(client, "/is_scaling_elastic_ep") == (200, status)


def test_collective_rpc_returns_the_results_of_a_worker_without_a_gpu() -> None:
    client = client_of(*DEV)
    for method, result in (
        ("check_health", None),
        ("reset_mm_cache", None),
        ("reset_encoder_cache", None),
        ("execute_dummy_batch", None),
        ("synchronize_device", None),
        ("get_supported_tasks", ["generate"]),
        ("get_encoder_timing_stats", {}),
        ("supports_draft_weight_updates", "False"),
        ("compile_or_warm_up_model", [0.0, 0.0]),
    ):
        assert ask(client, "/collective_rpc", {"method": method}) == (200, {"results": [result]})
    memory = ask(client, "/collective_rpc", {"method": "determine_available_memory"})[1]
    assert int(memory["results"][0]) > 0
    assert ask(client, "/collective_rpc", {"method": "profile"})[0] == 500
    profiled = client_of(*DEV, "--profiling")
    assert ask(profiled, "/collective_rpc", {"method": "profile"})[0] == 200


def test_start_profile_rejects_invalid_arguments() -> None:
    client = client_of("--profiling", "--force-dummy-tokenizer")
    assert client.post("/start_profile", json={}).status_code == 200
    for body, param in (
        ({"max_iterations": "5"}, "body.max_iterations"),
        ({"profile_prefix": "/tmp"}, None),
    ):
        assert refused(ask(client, "/start_profile", body))[::2] == (400, param)


def test_profiler_arguments_are_accepted_from_version_0_33() -> None:
    later = client_of("--vllm-version", "0.33", "--profiling", "--force-dummy-tokenizer")
    body: dict[str, object] = {"profiler_kwargs": {"with_stack": True}}
    assert later.post("/start_profile", json=body).status_code == 200
    body = {"profiler_kwargs": "with_stack"}
    wrong = (400, BAD, "body.profiler_kwargs")
    assert refused(ask(later, "/start_profile", body)) == wrong
    earlier = client_of("--vllm-version", "0.32", "--profiling", "--force-dummy-tokenizer")
    assert earlier.post("/start_profile", json=body).status_code == 200


def test_collective_rpc_method_that_is_not_a_string_is_rejected() -> None:
    client = app_of("--force-dummy-tokenizer", "--server-dev-mode").test_client()
    for method in (["sleep"], {"name": "sleep"}, 1):
        answer = client.post("/collective_rpc", json={"method": method})
        assert answer.status_code == 500
        assert "is not implemented" in answer.get_json()["error"]["message"]

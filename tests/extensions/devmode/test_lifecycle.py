"""Sleep and wake, pause and resume, abort: what needs no process."""

from tests.client import Client, in_process


def state(client: Client) -> tuple[bool, bool]:
    """Asleep, and paused."""
    return client.get("/is_sleeping").json()["is_sleeping"], client.get("/is_paused").json()[
        "is_paused"
    ]


def test_server_sleeps_until_wake_up(client: Client) -> None:
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.post("/sleep?level=2").json() == {"status": "sleeping", "level": 2}
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    assert client.metric("vllm:engine_sleep_state", sleep_state="discard_all") == 1
    assert client.metric("vllm:engine_sleep_state", sleep_state="awake") == 0
    client.complete()
    assert client.post("/wake_up").json() == {"status": "awake", "tags": None}
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.metric("vllm:engine_sleep_state", sleep_state="awake") == 1


def test_server_is_awake_once_every_part_was_woken_by_its_tag(client: Client) -> None:
    client.post("/sleep")
    for tags in (["weights"], ["everything"], ["weights", "kv_cache"]):
        body = client.post("/wake_up", params={"tags": tags}).json()
        assert body == {"status": "sleeping", "tags": tags}
        assert state(client) == (True, True)
    assert client.post("/wake_up?tags=kv_cache").json() == {"status": "awake", "tags": ["kv_cache"]}
    assert state(client) == (False, False)


def test_kv_cache_memory_can_be_released_and_restored_during_a_pause() -> None:
    def blocks() -> int:
        client.complete(prompt="Hello " * 100)
        usage = client.complete(prompt="Hello " * 100)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    flags = ("--server-dev-mode", "--enable-kvcache", "--enable-prompt-tokens-details")
    with in_process(*flags) as client:
        assert blocks() > 0
        too_soon = client.post("/release_kv_cache_memory")
        assert (too_soon.status_code, too_soon.json()["error"]["type"]) == (
            500,
            "InternalServerError",
        )
        client.post("/pause?mode=wait")
        assert client.post("/release_kv_cache_memory").json() == {"status": "kv_cache_released"}
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert client.post("/release_kv_cache_memory").status_code == 500
        count = "vllm:sleep_mode_operation_duration_seconds_count"
        assert client.metric(count, operation="release_kv_cache_memory") == 1
        client.post("/wake_up?tags=kv_cache")
        assert state(client) == (False, False)
        client.post("/pause?mode=wait")
        client.post("/release_kv_cache_memory")
        client.post("/resume")
        details = client.complete(prompt="Hello " * 100)["usage"]["prompt_tokens_details"]
        assert details is None or not details["cached_tokens"]
        client.post("/wake_up")
        assert blocks() > 0
        client.post("/sleep")
        client.post("/pause")
        assert client.post("/release_kv_cache_memory").status_code == 500


def test_invalid_query_parameters_of_lifecycle_routes_are_rejected(client: Client) -> None:
    for path in (
        *(
            "/sleep?level=7",
            "/sleep?level=-1",
            "/sleep?level=x",
            "/sleep?level=",
            "/sleep?mode=perhaps",
        ),
        *(
            "/pause?mode=perhaps",
            "/pause?mode=",
            "/pause?mode=wait&mode=x",
            "/pause?clear_cache=perhaps",
        ),
        *("/reset_prefix_cache?reset_running_requests=2", "/reset_prefix_cache?reset_external=x"),
        "/server_info?config_format=yaml",
    ):
        answer = client.get(path) if path.startswith("/server") else client.post(path)
        name = path.partition("=")[0].rpartition("?")[2]
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (
            400,
            "Bad Request",
            f"query.{name}",
        )
        assert state(client) == (False, False)


def test_reset_profile_and_server_info_routes_respond_as_in_vllm(
    client: Client,
) -> None:
    assert client.post("/reset_prefix_cache").json() == {"success": True}
    reset = "/reset_prefix_cache?reset_running_requests=yes&reset_external=1"
    assert client.post(reset).json() == {"success": True}
    assert client.post("/reset_mm_cache").status_code == 200
    assert (
        client.post("/start_profile").status_code == client.post("/stop_profile").status_code == 200
    )
    shown_config = client.get("/server_info?config_format=json").json()["vllm_config"]
    assert shown_config["model"] == "base"
    assert "model='base'" in client.get("/server_info").json()["vllm_config"]


def test_development_routes_and_metrics_are_off_by_default() -> None:
    with in_process() as client:
        paths = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/start_profile")
        for path in (*paths, "/abort_requests", "/v1/load_lora_adapter"):
            answer = client.post(path, {})
            assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        metrics = client.get("/metrics").text
        assert "lora_requests_info" not in metrics and "loaded_lora_adapters" not in metrics

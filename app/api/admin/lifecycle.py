"""The development routes: sleep and wake, pause and resume, caches, server info, profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from flask import Blueprint, request

from app.engine.lifecycle import Lifecycle, PauseMode
from app.http.errors import malformed
from app.http.response import Reply, json_reply

MODES = ("abort", "wait", "keep")


def blueprint(lifecycle: Lifecycle, sleeps: bool, settings: Callable[[], dict[str, Any]]) -> Blueprint:
    """`sleeps` is `enable-sleep-mode`; `settings` gives all settings for people to read."""
    routes = Blueprint("lifecycle", __name__)

    @routes.post("/sleep")
    def sleep() -> Reply:
        """Put the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."""
        level = _integer("level", 1)
        if sleeps:
            lifecycle.sleep(level, _mode())
        return json_reply({"status": "sleeping", "level": level})

    @routes.post("/wake_up")
    def wake_up() -> Reply:
        """Wake the model up, or only the parts that `tags` name."""
        tags = request.args.getlist("tags") or None
        lifecycle.wake_up(tags)
        return json_reply({"status": "awake", "tags": tags})

    @routes.get("/is_sleeping")
    def is_sleeping() -> Reply:
        """Whether the model sleeps."""
        return json_reply({"is_sleeping": lifecycle.is_sleeping})

    @routes.post("/pause")
    def pause() -> Reply:
        """Begin no more requests; mode says what becomes of those that run."""
        lifecycle.pause("wait" if request.args.get("wait_for_inflight_requests") == "true" else _mode())
        return json_reply({"status": "paused"})

    @routes.post("/resume")
    def resume() -> Reply:
        """Begin requests again."""
        lifecycle.resume()
        return json_reply({"status": "resumed"})

    @routes.get("/is_paused")
    def is_paused() -> Reply:
        """Whether requests wait."""
        return json_reply({"is_paused": lifecycle.paused})

    @routes.post("/reset_prefix_cache")
    def reset_prefix_cache() -> Reply:
        """Forget what is cached."""
        return json_reply({"success": lifecycle.reset_prefix_cache()})

    @routes.post("/reset_mm_cache")
    @routes.post("/reset_encoder_cache")
    def reset_other_cache() -> Reply:
        """Forget cached media, of which there are none."""
        return Reply(b"", 200)

    @routes.get("/server_info")
    def server_info() -> Reply:
        """The settings, as text or as JSON."""
        told: Any = settings()
        if request.args.get("config_format", "text") == "text":
            told = ", ".join(f"{name}={value!r}" for name, value in told.items())
        return json_reply({"vllm_config": told, "vllm_env": {}, "system_env": {}})

    return routes


def profiler() -> Blueprint:
    """The routes of a profiler that has nothing to profile."""
    routes = Blueprint("profiler", __name__)

    @routes.post("/start_profile")
    @routes.post("/stop_profile")
    def profile() -> Reply:
        """Succeed."""
        return Reply(b"", 200)

    return routes


def _integer(name: str, default: int) -> int:
    text = request.args.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise malformed(f"query.{name}: expected an integer", f"query.{name}") from None


def _mode() -> PauseMode:
    mode = request.args.get("mode", "abort")
    if mode not in MODES:
        raise malformed(f"query.mode: expected one of {', '.join(MODES)}", "query.mode")
    return cast(PauseMode, mode)

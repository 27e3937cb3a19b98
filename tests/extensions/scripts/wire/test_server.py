"""A real server with scripts: how it starts, reads them again, and ends."""

import re
import signal
from pathlib import Path
from typing import Any

import requests

from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer, running_gunicorn, running_server


def said(server: RunningServer, text: str = "hello", **asked: Any) -> Any:
    """The text of an answer; its status when it is an error."""
    headers = asked.pop("headers", None)
    body = {"messages": [{"role": "user", "content": text}], **asked}
    answer = requests.post(
        server.url + "/v1/chat/completions", json=body, headers=headers, timeout=20
    )
    if answer.status_code != 200:
        return answer.status_code
    return answer.json()["choices"][0]["message"]["content"]


def test_a_changed_file_is_served_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: old}}, {then: {text: never}}]")
    with running_server("--script", str(path)) as server:
        assert said(server) == "old"
        path.write_text("rules: [{then: {text: new}}, {then: {text: never}, name: unused}]")
        wait_until(lambda: said(server) == "new")
        path.write_text("rules: [{then: {text: 5}}]")
        wait_until(
            lambda: (
                "then.text: Expected `str | null`, got `int`; keeping the old rules" in server.log()
            )
        )
        server.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: "reload rejected; keeping the old configuration: setting script" in server.log()
        )
        assert said(server) == "new"
        path.write_text("rules: [{then: {text: newest}}, {then: {text: never}, name: unused}]")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: said(server) == "newest")
        assert server.stop() == 0
        assert re.search(r"1 of 2 rules never answered: rule 2 \(unused\)", server.log())


def test_the_report_may_be_that_of_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: a}}]")
    with running_gunicorn(
        env={"SIM_SCRIPT": str(path), "SIM_DATA_PARALLEL_SIZE": "2"}, ports=2
    ) as server:
        said(server)

        def answered(method: str) -> dict[str, int]:
            told = requests.request(
                method, f"{server.url}/admin/script?ranks=all", timeout=10
            ).json()
            return {
                rank: report["files"][0]["rules"][0]["answered"] for rank, report in told.items()
            }

        assert answered("GET") == {"0": 1, "1": 0}
        assert answered("DELETE") == {"0": 0, "1": 0}

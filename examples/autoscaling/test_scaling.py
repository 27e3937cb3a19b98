"""An autoscaler follows the load of real pods: it adds pods for a queue, and removes them after it.

The pods are servers of Understudy, a real Prometheus scrapes them, and the decisions are those of
Kubernetes' HorizontalPodAutoscaler with its default behavior: `python -m pytest
examples/autoscaling` in a clone of the repository. Prometheus must be on the PATH. To test your
own target, change POLICY and the expected numbers.
"""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import vllm_understudy
from app.extensions.plugins.policies import Look
from vllm_understudy.ports import free_port
from workbench.load.hpa import HorizontalPodAutoscaler

T = TypeVar("T")

POLICY = HorizontalPodAutoscaler(min_pods=1, max_pods=3, metric="waiting", target=2)
LOOK_S = 15.0
"""Seconds between two looks of the HPA; the test counts them instead of waiting for them."""
WINDOW_LOOKS = 20
"""Looks in the HPA's stabilization window of five minutes."""
REQUESTS = 8
PATIENCE_S = 30.0
SCRAPES = """
global: {scrape_interval: 1s}
scrape_configs:
- job_name: pods
  file_sd_configs: [{files: [targets.json], refresh_interval: 200ms}]
"""


def wait_for(result: Callable[[], T], what: str) -> T:
    """Calls the function until its result is true, and returns that."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := result()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return value


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


class Prometheus:
    """A Prometheus that scrapes the pods in `targets.json`."""

    def __init__(self, folder: Path, url: str) -> None:
        self._targets = folder / "targets.json"
        self._url = url

    def scrape(self, pods: list[str]) -> None:
        """Scrapes these addresses from now on."""
        draft = self._targets.with_suffix(".draft")
        draft.write_text(json.dumps([{"targets": pods}]))
        draft.rename(self._targets)

    def values(self, query: str) -> dict[str, float]:
        """Returns the value of each pod."""
        result = json.loads(get(f"{self._url}/api/v1/query?{urlencode({'query': query})}"))
        series = result["data"]["result"]
        return {each["metric"]["instance"]: float(each["value"][1]) for each in series}


@contextmanager
def running_prometheus(folder: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    assert program, "install Prometheus: apt-get install prometheus"
    (folder / "prometheus.yml").write_text(SCRAPES)
    (folder / "targets.json").write_text("[]")
    port = free_port()
    files = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    command = [program, *files, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield Prometheus(folder, f"http://127.0.0.1:{port}")
        finally:
            process.kill()
            process.wait()


class Fleet:
    """The pods, and their autoscaler."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._pods: list[tuple[vllm_understudy.Server, ExitStack]] = []
        self._decide = POLICY.start(POLICY.min_pods)
        self._changed_s = time.time()
        self._looks = 0
        self.scale(POLICY.min_pods)

    @property
    def pods(self) -> list[vllm_understudy.Server]:
        return [pod for pod, _ in self._pods]

    def scale(self, count: int) -> None:
        """Starts and stops pods until there are `count`."""
        while len(self._pods) > count:
            _, stack = self._pods.pop()
            stack.close()
        while len(self._pods) < count:
            stack = ExitStack()
            pod = stack.enter_context(vllm_understudy.running_server(max_num_seqs=4))
            self._pods.append((pod, stack))
        self._prometheus.scrape([f"127.0.0.1:{pod.port}" for pod in self.pods])
        self.load_has_changed()

    def load_has_changed(self) -> None:
        """Lets the next look wait for metrics from after this moment."""
        self._changed_s = time.time()

    def look(self) -> int:
        """Decides as the HPA does every 15 seconds, and scales; returns the number of pods."""
        metric = "vllm:num_requests_waiting"
        waiting = wait_for(lambda: self._new_values(metric), "Prometheus has scraped all pods")
        samples = [{"waiting": each} for each in waiting]
        self._looks += 1
        wanted = self._decide(Look(self._looks * LOOK_S, len(self._pods), samples))
        if wanted != len(self._pods):
            self.scale(wanted)
        return len(self._pods)

    def _new_values(self, metric: str) -> list[float]:
        """Returns the metric of each pod, or nothing unless all were scraped after the last change.

        A pod that could not be scraped in time has no value until the next scrape.
        """
        try:
            times = self._prometheus.values(f"timestamp({metric})")
            values = self._prometheus.values(metric)
        except OSError:  # Prometheus is starting
            return []
        pods = [f"127.0.0.1:{pod.port}" for pod in self.pods]
        if any(times.get(pod, 0) <= self._changed_s or pod not in values for pod in pods):
            return []
        return [values[pod] for pod in pods]

    def close(self) -> None:
        for _, stack in self._pods:
            stack.close()


def ask(pod: vllm_understudy.Server) -> int:
    body = json.dumps({"prompt": "Hello", "max_tokens": 5}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{pod.base_url}/completions", body, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        status: int = answer.status
    return status


def test_the_fleet_grows_with_the_queue_and_shrinks_after_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        prometheus = stack.enter_context(running_prometheus(tmp_path))
        fleet = Fleet(prometheus)
        stack.callback(fleet.close)
        clients = stack.enter_context(ThreadPoolExecutor(REQUESTS))
        first = fleet.pods[0]

        assert [fleet.look() for _ in range(2)] == [1, 1], "no load, no change"

        with first.choke(paused=True):
            answers = [clients.submit(ask, first) for _ in range(REQUESTS)]
            wait_for(lambda: first.ask("GET", "/admin/choke")["waiting"] == REQUESTS, "all wait")
            fleet.load_has_changed()
            # 8 waiting requests, at a target of 2 for each pod, would need 4 pods; 3 are allowed.
            assert [fleet.look() for _ in range(3)] == [3, 3, 3]
        assert [answer.result(PATIENCE_S) for answer in answers] == [200] * REQUESTS
        fleet.load_has_changed()

        # The queue is gone at once, but the HPA keeps the highest number of the last five minutes.
        down = [fleet.look() for _ in range(WINDOW_LOOKS + 2)]
        assert down == [3] * (WINDOW_LOOKS - 1) + [1] * 3

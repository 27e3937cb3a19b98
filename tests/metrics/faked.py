"""A server's metrics with fake ones over them, at a time that the test moves on."""

import json
import re
from typing import Any

from app.base.clock.clock import VirtualClock
from app.base.metrics.fake import FakeFamilies
from app.base.metrics.instruments import Exposition
from app.base.metrics.recorder import Recorder
from app.serving.middleware.http_metrics import HttpMetrics
from config.fake_metrics import merged
from config.loader import load
from config.validation import LiveSettings

START = 1_700_000_000.0
"""Unix time at which the clock of a test starts."""


class Faked:
    """`keys` are the fake metrics of the start; None starts without."""

    def __init__(self, keys: dict[str, Any] | None, *flags: str) -> None:
        given = [] if keys is None else ["--fake-metrics", json.dumps(keys)]
        self.clock = VirtualClock()
        self.live = LiveSettings(load([*given, *flags], {}))
        self.recorder = Recorder("tiny", 1024, {})
        fakes = FakeFamilies("tiny", 1024, {}, 2, clock=self.clock.now, now=self._now)
        self.live.subscribe(fakes.on_settings)
        http = HttpMetrics()
        families = [lambda: (fakes if fakes.active else self.recorder).render(), http.text]
        self._exposition = Exposition(families, http.process_text, self.clock.now)

    def _now(self) -> float:
        return START + self.clock.now()

    def update(self, **keys: Any) -> None:
        """What /admin/config does; keys with underscores."""
        text = merged(self.live.current.metrics.fake_metrics, keys)
        self.live.change({"fake-metrics": text})

    def scrape(self) -> bytes:
        return self._exposition.render()

    def lines(self) -> list[str]:
        """All lines of `vllm:` families."""
        return [line for line in self.scrape().decode().splitlines() if "vllm:" in line]

    def names(self) -> set[str]:
        """The `vllm:` families that are there, but for creation times."""
        heads = re.findall(r"^# TYPE vllm:(\S+) ", self.scrape().decode(), re.MULTILINE)
        return {name for name in heads if not name.endswith("_created")}

    def samples(self, name: str) -> list[str]:
        """The sample lines of one name, without `vllm:` and the server's labels."""
        found = (line.removeprefix("vllm:") for line in self.lines() if re.match(rf"vllm:{name}[{{ ]", line))
        return [
            re.sub(r'engine="0",|model_name="tiny",?|,(?=})', "", line).replace("{}", "").replace(",}", "}")
            for line in found
        ]

    def value(self, name: str) -> float:
        (sample,) = self.samples(name)
        return float(sample.split()[-1])

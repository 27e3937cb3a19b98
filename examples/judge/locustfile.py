"""Appends a line for each request to run.jsonl, for `understudy judge`."""

import itertools
import json
from pathlib import Path

from locust import HttpUser, constant_throughput, events, task

RUN = Path("run.jsonl")

numbers = itertools.count()


@events.request.add_listener
def write_line(start_time, response_time, exception, context, **fields):
    """Writes the times of a request, its id and its error."""
    line = {"start_time": start_time, "response_time": response_time, **context}
    line["exception"] = None if exception is None else str(exception)
    with RUN.open("a") as file:
        file.write(json.dumps(line) + "\n")


class Client(HttpUser):
    """Sends four completions per second, each with its own id."""

    wait_time = constant_throughput(4)

    @task
    def complete(self):
        """Sends a completion."""
        name = f"locust-{next(numbers)}"
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 16}
        self.client.post(
            "/v1/completions",
            json=body,
            headers={"X-Request-Id": name},
            context={"request_id": name},
        )

"""What stands for the engine's process where no torch is: a real ZMQ peer that speaks
`app.extensions.llm.wire`.

Started as `python -m tests.extensions.llm.remote.engine OPTIONS`. It works in the folder of its
model: says what stands in `text`, a token in so many seconds as stand in `pace`, tells KV events as
in `blocks` with each request, and notes each order as a line of `orders.jsonl`; it refuses to start
while there is a file `refusal`, for the reason that stands in it.
"""

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

from app.extensions.llm import wire
from app.extensions.llm.heartbeat import Heartbeat

TOKEN_CHARS = 4
TOPIC = "kv@pod@model"
FIRST_ID = 300
"""Of the ids that it says: one behind the other."""


class Choice:
    def __init__(self, order: wire.EngineCoreRequest, text: str) -> None:
        self.order = order
        self.texts = [text[i : i + TOKEN_CHARS] for i in range(0, len(text), TOKEN_CHARS)] or [""]
        self.said_count = 0

    def step(self) -> wire.EngineCoreOutput:
        order = self.order
        place = self.said_count
        self.said_count += 1
        token_id = FIRST_ID + place
        output = wire.EngineCoreOutput(
            key=order.key, ids=[token_id], texts=[self.texts[place]], at_s=time.monotonic()
        )
        if order.sampling.logprobs is not None:
            top = [(token_id + rank, -0.5 - rank) for rank in range(order.sampling.logprobs)]
            output.logprobs = [wire.WireLogprob(token_id, -0.5, 1, top)]
        if not place:
            output.scheduled_s = time.monotonic()
            output.cached_tokens = 16
            if order.sampling.prompt_logprobs is not None:
                logprobs = [
                    wire.WireLogprob(token_id, -9.0, 7, [(1, -0.1)])
                    for token_id in order.prompt_ids[1:]
                ]
                output.prompt_logprobs = [None, *logprobs]
        if self.said_count == len(self.texts):
            output.finish = "stop"
        elif self.said_count == order.max_tokens:
            output.finish = "length"
        return output


class Engine:
    """Choices of all workers, a token of each in a step."""

    def __init__(self, options: wire.EngineProcessOptions) -> None:
        self.folder = Path(options.model)
        self.options = options
        context = zmq.Context()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(options.endpoint)
        self.heartbeat = Heartbeat(options.endpoint)
        self.boot = secrets.token_hex(4)
        self.choices: dict[tuple[bytes, int], Choice] = {}
        self.notices: dict[bytes, list[wire.Notice]] = {}
        self.listeners: set[bytes] = set()
        """Who is told of blocks."""
        self.paused = False
        self.computed = 0

    def run(self) -> None:
        self.heartbeat.begin()
        while os.getppid() == self.options.parent_pid:
            self.heartbeat.beat()
            self.receive(0 if self.choices else 200)
            if self.choices and not self.paused:
                self.step()
            self.send()

    def receive(self, timeout_ms: int) -> None:
        while self.socket.poll(timeout_ms):
            worker, data = self.socket.recv_multipart()
            self.notices.setdefault(worker, [])
            for order in msgspec.msgpack.decode(data, type=list[wire.Order]):
                with (self.folder / "orders.jsonl").open("ab") as file:
                    file.write(msgspec.json.encode(order) + b"\n")
                self.take(worker, order)
            timeout_ms = 0

    def take(self, worker: bytes, order: wire.Order) -> None:
        notices = self.notices[worker]
        match order:
            case wire.Hello():
                notices.append(self.ready())
                if order.kv_events:
                    self.listeners.add(worker)
            case wire.Abort():
                for key in order.keys:
                    self.choices.pop((worker, key), None)
                self.tell()
            case wire.EngineCommand():
                self.paused = order.name in ("pause", "sleep") or (
                    self.paused and order.name != "resume"
                )
                notices.append(wire.CommandResult(number=order.number, value=True))
            case wire.EngineCoreRequest() if (self.folder / "error").exists():
                refusal_output = wire.EngineCoreOutput(
                    key=order.key, at_s=time.monotonic(), finish="error"
                )
                refusal_output.error = (self.folder / "error").read_text()
                refusal_output.is_refused = order.sampling.seed == 400
                notices.append(refusal_output)
            case wire.EngineCoreRequest():
                self.choices[worker, order.key] = Choice(order, (self.folder / "text").read_text())
                if worker in self.listeners:
                    notices.append(
                        wire.PublishedEvents(TOPIC, 0, (self.folder / "blocks").read_bytes())
                    )

    def ready(self) -> wire.Ready:
        return wire.Ready(
            boot=self.boot,
            pid=os.getpid(),
            max_model_len=self.options.max_model_len or 2048,
            num_blocks=64,
            block_size=self.options.block_size,
        )

    def step(self) -> None:
        time.sleep(float((self.folder / "pace").read_text()))
        for (worker, key), choice in list(self.choices.items()):
            output = choice.step()
            self.notices[worker].append(output)
            if output.finish is not None:
                del self.choices[worker, key]
        self.computed += 16
        self.tell(8)

    def tell(self, step_tokens: int = 0) -> None:
        load = wire.EngineLoad(running=len(self.choices), cache_usage=0.25 if self.choices else 0.0)
        load.step_tokens = step_tokens
        load.paused = self.paused
        load.preemptions = 3
        load.prefix_queries = 2 * self.computed
        load.prefix_hits = self.computed
        for notices in self.notices.values():
            notices.append(load)

    def send(self) -> None:
        for worker, notices in self.notices.items():
            if notices:
                self.socket.send_multipart([worker, msgspec.msgpack.encode(notices)])
                notices.clear()


def end(*_: object) -> None:
    sys.exit(0)


def main() -> int:
    options = msgspec.json.decode(sys.argv[1], type=wire.EngineProcessOptions)
    signal.signal(signal.SIGTERM, end)
    engine = Engine(options)
    refusal = engine.folder / "refusal"
    if refusal.exists():
        engine.socket.poll(5000)
        worker, _ = engine.socket.recv_multipart()
        engine.socket.send_multipart(
            [
                worker,
                msgspec.msgpack.encode([wire.CommandResult(number=0, error=refusal.read_text())]),
            ]
        )
        time.sleep(0.2)
        return 1
    with (engine.folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

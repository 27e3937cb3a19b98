"""Requests with known moments, as a tool and a server saw them."""

from collections.abc import Sequence

from workbench.judge.matching import Pair
from workbench.judge.served import ServedRequest
from workbench.runs.tool_requests import ToolRequest

SERVER_ZERO_S = 1_800_000_000.0
"""The server's clock when the tool's shows 0."""


def pair_of(
    number: int,
    send_s: float,
    ways_s: tuple[float, float] = (0.001, 0.001),
    difference_s: float = SERVER_ZERO_S,
    drift: float = 0.0,
) -> Pair:
    """A request of 100 ms to the first token and 50 ms to the last, with ways there and back."""
    out_s, back_s = ways_s

    def at_server(moment_s: float) -> float:
        return moment_s + difference_s + drift * moment_s

    arrived_s = send_s + out_s
    sends = [arrived_s + 0.1, arrived_s + 0.15]
    tool = ToolRequest(
        place=f"x.json: request {number}",
        send_s=send_s,
        first_s=sends[0] + back_s,
        last_s=sends[1] + back_s,
        ids=(f"request-{number}",),
    )
    served = ServedRequest(
        id=f"request-{number}",
        route="/v1/completions",
        status=200,
        arrived_s=at_server(arrived_s),
        first_s=at_server(sends[0]),
        last_s=at_server(sends[1]),
        sends_s=[at_server(moment_s) for moment_s in sends],
        usage={"completion_tokens": 2},
    )
    return Pair(tool, served)


def tools_of(pairs: Sequence[Pair]) -> list[ToolRequest]:
    return [pair.tool for pair in pairs]


def journal_of(pairs: Sequence[Pair]) -> list[ServedRequest]:
    return [pair.served for pair in pairs]

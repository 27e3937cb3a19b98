"""The requests that the disaggregation proxies of vLLM 0.33 send, each against two servers.

A function of this file sends what one proxy sends, in the same order: bodies, headers and
`kv_transfer_params`. The proxies are in vLLM's `examples/disaggregated` and `tests/v1`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import requests

from tests.client import Client, events, served
from tests.running_server import free_port
from tests.stubs import eventually
from tests.waits import wait_for_metric

BLOCK_TOKENS = 16
USAGE = "vllm:kv_cache_usage_perc"
HITS = "vllm:external_prefix_cache_hits_total"
PATHS = ("/v1/completions", "/v1/chat/completions")
NOTHING = {
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Fields that proxies for NixlConnector send to the prefill pod."""
Body = dict[str, Any]


class Pods(NamedTuple):
    """A prefill pod and a decode pod with the same connector."""

    prefill: Client
    decode: Client
    side_channel_port: int
    """Port of the prefill pod."""
    bootstrap: str = ""
    """Address of the bootstrap server of the prefill pod."""

    def post(self, client: Client, path: str, body: Body, **headers: str) -> requests.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(path, body, headers={"Authorization": "Bearer None", **names})

    def prefill_answer(self, path: str, body: Body, **headers: str) -> Body:
        """The answer of a prefill, which must succeed."""
        answer = self.post(self.prefill, path, body, **headers)
        assert answer.status_code == 200, answer.text
        whole: Body = answer.json()
        return whole


def of_one_token(body: Body, params: Body | None = None) -> Body:
    """The request of a proxy to the prefill pod."""
    prefill = {**body, "stream": False, "max_tokens": 1}
    prefill.pop("stream_options", None)
    if params is not None:
        prefill["kv_transfer_params"] = params
    return prefill


def toy_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`toy_proxy_server.py` of the tests of NixlConnector."""
    request_id = str(uuid4())
    params = {"do_remote_decode": True, "do_remote_prefill": False, **NOTHING}
    prefill = of_one_token(body, params)
    answer = pods.prefill_answer(path, prefill, X_Request_Id=request_id)
    decode = {**body, "kv_transfer_params": answer["kv_transfer_params"]}
    return pods.post(pods.decode, path, decode, X_Request_Id=request_id)


def push_demo(pods: Pods, path: str, body: Body) -> requests.Response:
    """`disagg_proxy_pushconnector_demo.py`, which asks both pods at the same time."""
    request_id = str(uuid4())
    params = {"do_remote_decode": True, "do_remote_prefill": False, **NOTHING}
    prefill = {**body, "max_tokens": 1, "kv_transfer_params": params}
    decode = {
        **body,
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": "prefill-1",
            "remote_host": "127.0.0.1",
            "remote_port": pods.side_channel_port,
            "tp_size": 1,
            "pp_size": 1,
            "remote_request_id": request_id,
        },
    }
    with ThreadPoolExecutor(1) as pool:
        prefilling = pool.submit(pods.post, pods.prefill, path, prefill, X_Request_Id=request_id)
        answer = pods.post(pods.decode, path, decode, X_Request_Id=request_id)
        assert prefilling.result().status_code == 200
    return answer


def multiturn_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`disagg_proxy_multiturn.py`, which streams each decode and changes the host."""
    request_id = str(uuid4())
    prefill_params = {"do_remote_decode": True, "do_remote_prefill": False, **NOTHING}
    prefill = of_one_token(body, prefill_params)
    answer = pods.prefill_answer(path, prefill, X_Request_Id=request_id)
    params = {**answer["kv_transfer_params"], "remote_host": "127.0.0.1"}
    decode = {**body, "stream": True, "kv_transfer_params": params}
    return pods.post(pods.decode, path, decode, X_Request_Id=request_id)


def plain_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`disagg_proxy_demo.py` and the proxy of the LMCache example: no parameters, no ids."""
    pods.prefill_answer(path, of_one_token(body))
    return pods.post(pods.decode, path, body)


def mooncake_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`mooncake_connector_proxy.py`, which asks both pods at the same time."""
    request_id = str(uuid4())
    entries = requests.get(f"{pods.bootstrap}/query", timeout=20).json()
    transfer_id = f"xfer-{request_id}"
    prefill = of_one_token(
        body,
        {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id},
    )
    decode = {
        **body,
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": pods.bootstrap,
            "remote_engine_id": entries["0"]["engine_id"],
            "transfer_id": transfer_id,
        },
    }
    headers = {"X_Request_Id": request_id}
    with ThreadPoolExecutor(1) as pool:
        prefilling = pool.submit(
            pods.post, pods.prefill, path, prefill, X_data_parallel_rank="0", **headers
        )
        answer = pods.post(pods.decode, path, decode, **headers)
        assert prefilling.result().status_code == 200
    return answer


def moriio_parts(pods: Pods, body: Body) -> tuple[str, Body, Body]:
    """The id of a request, and the bodies for both pods."""
    port = pods.side_channel_port
    address = f"host:127.0.0.1,handshake:6301,notify:{port}"
    request_id = f"___prefill_addr_{address}___decode_addr_{address}_{uuid4().hex}"
    transfer_id = f"tx-{uuid4()}"
    sizes = {"remote_dp_size": 1, "remote_tp_size": 1}
    names = {"remote_engine_id": None, "remote_block_ids": None, "transfer_id": transfer_id}
    prefill_flags = {"do_remote_decode": True, "do_remote_prefill": False}
    decode_flags = {"do_remote_decode": False, "do_remote_prefill": True}
    prefill = of_one_token(body, {**sizes, **names, **prefill_flags})
    decode = {
        **body,
        "max_tokens": body["max_tokens"] - 1,
        "kv_transfer_params": {**decode_flags, **names, **sizes},
    }
    return request_id, prefill, decode


def moriio_write_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`moriio_toy_proxy_server.py` in mode WRITE, which asks both pods at the same time."""
    request_id, prefill, decode = moriio_parts(pods, body)
    with ThreadPoolExecutor(1) as pool:
        prefilling = pool.submit(pods.post, pods.prefill, path, prefill, X_Request_Id=request_id)
        answer = pods.post(pods.decode, path, decode, X_Request_Id=request_id)
        assert prefilling.result().status_code == 200
    return answer


def moriio_read_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`moriio_toy_proxy_server.py` in mode READ, which waits for the prefill."""
    request_id, prefill, decode = moriio_parts(pods, body)
    params = pods.prefill_answer(path, prefill, X_Request_Id=request_id)["kv_transfer_params"]
    for name in ("remote_engine_id", "remote_block_ids", "transfer_id", "tp_size"):
        decode["kv_transfer_params"][name] = params[name]
    return pods.post(pods.decode, path, decode, X_Request_Id=request_id)


def peer_decode(pods: Pods, body: Body, role: str, request_id: str) -> Body:
    peer = {
        "kv_request_id": request_id,
        "remote_host": "127.0.0.1",
        "remote_port": pods.side_channel_port,
    }
    return {**body, "kv_transfer_params": {role: peer}}


def p2p_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`p2p_connector_proxy.py`, which waits for the prefill."""
    request_id = str(uuid4())
    params = {"remote_decoder": {"kv_request_id": request_id}}
    pods.prefill_answer(path, of_one_token(body, params), X_Request_Id=request_id)
    decode = peer_decode(pods, body, "remote_prefiller", request_id)
    return pods.post(pods.decode, path, decode, X_Request_Id=request_id)


def p2p_proxy_decoder_first(pods: Pods, path: str, body: Body) -> requests.Response:
    """`p2p_connector_proxy.py --decoder-first`."""
    request_id = str(uuid4())
    decode = peer_decode(pods, body, "remote_prefiller", request_id)
    params = {"remote_decoder": {"kv_request_id": request_id}}
    with ThreadPoolExecutor(1) as pool:
        decoding = pool.submit(pods.post, pods.decode, path, decode, X_Request_Id=request_id)
        pods.prefill_answer(path, of_one_token(body, params), X_Request_Id=request_id)
        return decoding.result()


def symmetric_p2p_proxy(pods: Pods, path: str, body: Body) -> requests.Response:
    """`p2p_connector_proxy.py --p2p`."""
    request_id = str(uuid4())
    pods.prefill_answer(path, of_one_token(body), X_Request_Id=request_id)
    decode = peer_decode(pods, body, "remote_kv_source", request_id)
    return pods.post(pods.decode, path, decode, X_Request_Id=request_id)


CONNECTORS = {
    "nixl": (toy_proxy, multiturn_proxy, plain_proxy),
    "nixl-push": (push_demo, toy_proxy),
    "mooncake": (mooncake_proxy,),
    "moriio": (moriio_write_proxy, moriio_read_proxy),
    "lmcache": (plain_proxy,),
    "p2p": (p2p_proxy, p2p_proxy_decoder_first, symmetric_p2p_proxy),
}
"""Value of `kv-connector` -> the proxies that work with it."""


@pytest.fixture(scope="module", params=CONNECTORS)
def connector(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pods(connector: str) -> Iterator[Pods]:
    side_port = free_port()
    bootstrap_port = free_port()
    flags = (
        *("--enable-kvcache", "--kv-cache-size", "65", "--max-model-len", "512"),
        *("--kv-connector", connector, "--kv-side-channel-host", "127.0.0.1"),
        *("--kv-side-channel-timeout", "60s"),
    )
    prefill_flags = (
        *("--kv-side-channel-port", str(side_port), "--kv-role", "kv_producer"),
        *("--mooncake-bootstrap-port", str(bootstrap_port), "--kv-engine-id", "prefill-1"),
    )
    decode_flags = ("--kv-side-channel-port", str(free_port()), "--kv-role", "kv_consumer")
    with ExitStack() as stack:
        prefill = stack.enter_context(served(*flags, *prefill_flags))
        decode = stack.enter_context(served(*flags, *decode_flags))
        bootstrap = f"http://127.0.0.1:{bootstrap_port}"
        if connector == "mooncake":
            eventually(partial(is_open, bootstrap))
        yield Pods(prefill, decode, side_port, bootstrap)


def is_open(bootstrap: str) -> bool:
    try:
        return requests.get(f"{bootstrap}/query", timeout=20).status_code == 200
    except requests.ConnectionError:
        return False


def body_of(path: str, text: str, stream: bool) -> Body:
    body: Body = {"model": "base", "max_tokens": 4, "ignore_eos": True}
    body["stream"] = stream
    body["stream_options"] = {"include_usage": True} if stream else None
    if path == PATHS[0]:
        return {**body, "prompt": text}
    return {**body, "messages": [{"role": "user", "content": text}]}


def usage_of(answer: requests.Response) -> dict[str, Any]:
    """The usage in a whole answer, or at the end of a stream."""
    assert answer.status_code == 200, answer.text
    if answer.headers["Content-Type"].startswith("application/json"):
        return dict(answer.json()["usage"])
    return dict(events(answer)[-1]["usage"])


def loaded_tokens(proxy: Callable[..., object], prompt_tokens: int) -> int:
    """Tokens that the decode pod gets of the prefill pod."""
    if proxy is plain_proxy:
        return 0
    if "p2p" in proxy.__name__:
        return (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return prompt_tokens


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_each_prefill_decode_proxy_causes_a_block_transfer(
    pods: Pods, connector: str, path: str, stream: bool
) -> None:
    for proxy in CONNECTORS[connector]:
        text = f"{uuid4().hex} " * 12
        hits = pods.decode.metric(HITS)
        usage = usage_of(proxy(pods, path, body_of(path, text, stream or proxy is multiturn_proxy)))
        expected_tokens = 3 if "moriio" in proxy.__name__ else 4
        assert usage["completion_tokens"] == expected_tokens
        assert usage["prompt_tokens"] > 3 * BLOCK_TOKENS
        gained = pods.decode.metric(HITS) - hits
        assert gained == loaded_tokens(proxy, usage["prompt_tokens"]), proxy
        wait_for_metric(pods.prefill.server.port, USAGE, 0)
        wait_for_metric(pods.decode.server.port, USAGE, 0)

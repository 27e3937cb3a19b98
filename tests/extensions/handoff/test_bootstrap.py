"""The bootstrap server of a prefill pod keeps a bounded number of registrations."""

import msgspec
import pytest

from app.extensions.data_parallel.side_server import ClientLimits
from app.extensions.handoff import bootstrap
from app.extensions.handoff.bootstrap import BootstrapServer, Registration
from app.shared.http_client import exchange
from tests.stubs import eventually, unused_address


def test_bootstrap_server_rejects_workers_above_the_maximum_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "MAX_REGISTRATIONS", 3)
    address = unused_address()
    host, _, port = address.rpartition(":")
    worker = Registration(engine_id="e", dp_rank=0, tp_rank=0, pp_rank=0, addr="tcp://h:1")
    server = BootstrapServer(host, int(port), worker, ClientLimits())
    server.start()

    def status(rank: int) -> int:
        body = msgspec.json.encode(msgspec.structs.replace(worker, pp_rank=rank))
        return exchange(address, "POST", "/register", body)[0]

    def is_listening() -> bool:
        try:
            return exchange(address, "GET", "/query")[0] == 200
        except OSError:
            return False

    eventually(is_listening)
    assert [status(rank) for rank in (1, 2, 3, 4)] == [200, 200, 400, 400]
    server.close()

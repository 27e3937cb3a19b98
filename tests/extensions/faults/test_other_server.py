"""What each server that is not ours is told of an answer that a fault breaks off."""

import pytest

from app.shared.break_off import break_off
from tests.core.web.test_other_server import ClientDisconnected, Shown, broken_body


@pytest.mark.parametrize("threads", [False, True], ids=["loop", "threads"])
@pytest.mark.parametrize(
    ("server", "end"),
    [
        ("uwsgi", StopIteration),
        ("waitress", ClientDisconnected),
        ("mod_wsgi", SystemExit),
        ("another", ConnectionResetError),
    ],
)
def test_injected_disconnect_closes_the_connection_without_an_error_log(
    server: str, end: type[BaseException], threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(server, monkeypatch)
    body = broken_body(
        shown, lambda context: break_off(context.connection), **{"wsgi.multithread": threads}
    )
    assert next(body) == b"1"
    with pytest.raises(end):
        next(body)
    body.close()
    shown.socket.sendall(b"what the server held back")
    shown.socket.close()
    assert shown.client.recv(100) == b"what the server held back"
    if server == "uwsgi":
        with pytest.raises(ConnectionResetError):
            shown.client.recv(100)
    shown.client.close()

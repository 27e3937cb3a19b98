from collections.abc import Iterator

import pytest

from tests.core.kvcache.sockets import Peers


@pytest.fixture
def peers() -> Iterator[Peers]:
    connected = Peers()
    yield connected
    connected.close()

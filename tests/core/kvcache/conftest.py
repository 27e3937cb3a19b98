from collections.abc import Iterator

import pytest

from tests.core.kvcache.sockets import Peers


@pytest.fixture
def peers() -> Iterator[Peers]:
    made = Peers()
    yield made
    made.close()

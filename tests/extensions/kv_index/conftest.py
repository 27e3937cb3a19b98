"""What the tests of the index share:

a real Redis, and the backends that all have to behave alike.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from app.extensions.kv_index.backend import Backend
from app.extensions.kv_index.memory import MemoryBackend, weigh_bytes
from tests.extensions.kv_index.publisher import SteppedIndexer, stepped_indexer
from tests.extensions.kv_index.redis_server import RedisServer, redis_server

BACKENDS = ("memory", "cost-aware", pytest.param("redis", marks=pytest.mark.redis))
MakeBackend = Callable[[], Backend]
_numbers = count()


@pytest.fixture(scope="session")
def embedded() -> LocalTokenizer:
    return default_tokenizer()


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests that leave it running; each uses a namespace of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=BACKENDS)
def make_backend(request: pytest.FixtureRequest) -> Iterator[MakeBackend]:
    from app.extensions.kv_index.redis_backend import RedisBackend

    backends: list[Backend] = []

    def make() -> Backend:
        backend: Backend
        match request.param:
            case "memory":
                backend = MemoryBackend()
            case "cost-aware":
                backend = MemoryBackend(1 << 30, weigh_bytes)
            case _:
                server: RedisServer = request.getfixturevalue("redis_process")
                backend = RedisBackend(server.url, namespace=f"test{next(_numbers)}")
        backends.append(backend)
        return backend

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture
def backend(make_backend: MakeBackend) -> Backend:
    return make_backend()


@pytest.fixture
def indexer() -> Iterator[SteppedIndexer]:
    with stepped_indexer() as indexer:
        yield indexer

"""The indexer of the compose file."""

import gevent
from msgspec.structs import replace

from app.core.assembly.derived import publishing
from app.core.base.background import BackgroundLoops
from app.core.engine.kvcache.events import AllBlocksCleared, BlockStored
from app.core.engine.kvcache.publisher import EventSender
from app.core.settings import load
from app.core.text.huggingface import default_tokenizer
from app.extensions.kv_index.service import build_index
from app.extensions.kv_index.settings import KVIndexSettings
from tests.test_compose import SERVICES


def test_indexer_of_the_compose_file_distinguishes_the_three_pods() -> None:
    """Each publishes with the settings of its service, over sockets of this process."""
    pods = [
        load((), SERVICES[name]["environment"]) for name in ("cached-1", "cached-2", "cached-3")
    ]
    model = pods[0].model.model
    indexer_settings = load((), SERVICES["indexer"]["environment"])
    index = build_index(
        replace(
            indexer_settings,
            kv_index=replace(
                indexer_settings.section(KVIndexSettings), kv_index_bind="tcp://127.0.0.1:*"
            ),
        ),
        default_tokenizer(),
        BackgroundLoops(),
    )
    index.open()
    senders = []
    for number, pod in enumerate(pods):
        published = publishing(pod.kvcache, pod.server, pod.api, model=pod.model.model, rank=0)
        sender = EventSender(replace(published, endpoint=index.address, flush_s=0.0))
        sender.open()
        senders.append(sender)
        tokens = [number] * 16
        while not index.index.score(
            model, tokens
        ):  # what is sent before the connection is there is lost
            sender.put([AllBlocksCleared(), BlockStored([1], None, tokens, 16, None)])
            sender.turn()
            gevent.sleep(0.01)
    assert [index.index.score(model, [number] * 16)[0].pod for number in range(3)] == [
        f"127.0.0.1:{pod.server.port}" for pod in pods
    ]
    for sender in senders:
        sender.close()
    index.close()

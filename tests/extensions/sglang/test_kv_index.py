"""The KV index reads events in SGLang's form."""

from app.core.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from app.extensions.kv_index.decoding import decode
from app.extensions.sglang.kv_events import encode_batch


def test_kv_index_reads_the_events_of_the_sglang_dialect() -> None:
    events = [BlockStored([1, 2], None, [4, 5], 1, None), BlockRemoved([1]), AllBlocksCleared()]
    batch = decode(encode_batch(EventBatch(1.5, events, 1)))
    assert (batch.ts, batch.rank, batch.losses) == (1.5, 1, ())
    assert batch.events == events

"""POST /pooling and POST /classify."""

from __future__ import annotations

import json
import math
import struct

import pytest

from tests.conformance.wire import error_of, ok, post
from tests.pooling.wire import BASE, CLASSIFY, POOL
from tests.running_server import RunningServer


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (None, (16,)),
        ("embed", (16,)),
        ("classify", (2,)),
        ("token_embed", (3, 16)),
        ("token_classify", (3, 2)),
    ],
)
def test_pooling_gives_what_its_task_says(
    every: RunningServer, task: str | None, shape: tuple[int, ...]
) -> None:
    asked = {"input": [1, 2, 3], "task": task}
    (item,) = ok(post(every, POOL, asked))["data"]
    rows = item["data"] if len(shape) > 1 else [item["data"]]
    assert (len(rows), {len(row) for row in rows}) == (shape[0] if len(shape) > 1 else 1, {shape[-1]})
    got = post(every, POOL, {**asked, "encoding_format": "bytes"})
    assert tuple(json.loads(got.headers["metadata"])["data"][0]["shape"]) == shape
    numbers = struct.unpack(f"<{math.prod(shape)}f", got.content)
    assert list(numbers) == [number for row in rows for number in row]


def test_a_model_pools_for_its_own_task_only(cross: RunningServer, classifier: RunningServer) -> None:
    assert len(ok(post(cross, POOL, BASE[POOL]))["data"][0]["data"]) == 1
    assert len(ok(post(classifier, POOL, {**BASE[POOL], "task": "classify"}))["data"][0]["data"]) == 2
    for task in ("embed", "token_classify", "plugin"):
        got = post(classifier, POOL, {**BASE[POOL], "task": task})
        assert error_of(got) == (400, "BadRequestError", "task")


def test_probabilities_of_classes_add_up_to_one(every: RunningServer, cross: RunningServer) -> None:
    items = ok(post(every, CLASSIFY, {"input": ["hello", "world", "hello"]}))["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    for item in items:
        assert (len(item["probs"]), item["num_classes"]) == (2, 2)
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
    assert items[0]["probs"] == items[2]["probs"] != items[1]["probs"]
    (logits,) = ok(post(every, CLASSIFY, {"input": "hello", "use_activation": False}))["data"]
    assert logits["label"] == items[0]["label"] and sum(logits["probs"]) != pytest.approx(1)
    (single,) = ok(post(cross, CLASSIFY, {"input": "hello"}))["data"]
    assert (single["label"], single["num_classes"]) == ("LABEL_0", 1)

"""What the played model computes, task by task."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pooling.model import TASKS, PoolingModel
from app.pooling.numbers import Turns
from app.tokenization import default_tokenizer

IDS = st.lists(st.integers(0, 500), min_size=1, max_size=30)
TOKENIZER = default_tokenizer()
MODEL = PoolingModel(dimensions=4, classes=2, tokenizer=TOKENIZER)


@given(ids=IDS, classes=st.integers(2, 16))
def test_probabilities_add_up_to_one(ids: list[int], classes: int) -> None:
    probabilities = PoolingModel(4, classes, TOKENIZER).classify(ids, None)
    assert len(probabilities) == classes
    assert sum(probabilities) == pytest.approx(1)
    assert all(0 < probability < 1 for probability in probabilities)


@given(ids=IDS)
def test_a_single_class_has_a_score(ids: list[int]) -> None:
    (score,) = PoolingModel(4, 1, TOKENIZER).classify(ids, None)
    assert 0 < score < 1


@given(ids=IDS)
def test_the_activation_keeps_the_order_of_the_logits(ids: list[int]) -> None:
    assert MODEL.label(MODEL.classify(ids, False)) == MODEL.label(MODEL.classify(ids, None))


def test_texts_are_spread_over_the_classes() -> None:
    labels = Counter(MODEL.label(MODEL.classify([number], None)) for number in range(1000))
    assert set(labels) == {"LABEL_0", "LABEL_1"}
    assert min(labels.values()) > 400


@pytest.mark.parametrize("task", TASKS)
@given(ids=IDS)
def test_what_a_task_gives_has_the_shape_that_was_told(task: str, ids: list[int]) -> None:
    rows = list(MODEL.pool(task, ids, None, Turns()))
    shape = MODEL.shape(task, len(ids))
    assert {len(row) for row in rows} == {shape[-1]}
    assert len(rows) == (shape[0] if len(shape) > 1 else 1)


def test_a_token_is_pooled_as_a_text_of_its_own() -> None:
    ids = TOKENIZER.encode("hello world")
    texts = TOKENIZER.token_texts(ids)
    vectors = list(MODEL.pool("token_embed", ids, None, Turns()))
    assert vectors == [MODEL.embed(text, None, Turns()) for text in texts]
    assert list(MODEL.pool("embed", ids, True, Turns())) == [MODEL.embed("hello world", True, Turns())]


def test_vectors_have_their_length_unless_the_request_wants_them_without() -> None:
    raw, unit, same = (MODEL.embed("hello", activation, Turns()) for activation in (False, None, True))
    length = math.dist(raw, [0] * 4)
    assert length != pytest.approx(1) and unit == same
    assert [number * length for number in unit] == pytest.approx(raw.tolist(), abs=1e-6)

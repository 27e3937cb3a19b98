"""Tokens that wait for a client:

merged by choice, and never lost, reordered or given another part.
"""

from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.outputs import (
    EngineOutput,
    Finish,
    LazySequence,
    Part,
    TokenBacklog,
    TokenLogprob,
    Tokens,
)

PARTS = (None, Part("reasoning"), Part("call", 0, "f"))
Shown = tuple[int, str, int, Part | None, float | None]
"""Choice, text, id, part and log probability of one token."""


def entry(position: int) -> TokenLogprob:
    return TokenLogprob(position, str(position), -float(position), ())


def shown(outputs: list[EngineOutput], choice: int) -> list[Shown]:
    """Returns each token of a choice, in order."""
    rows: list[Shown] = []
    for output in outputs:
        if not isinstance(output, Tokens) or output.index != choice:
            continue
        for position, (text, token_id) in enumerate(zip(output.texts, output.ids, strict=True)):
            logprob = None if output.logprobs is None else output.logprobs[position].logprob
            rows.append((choice, text, token_id, output.part, logprob))
    return rows


@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(PARTS), st.booleans()),
        max_size=40,
    ),
    taken_at=st.sets(st.integers(0, 40)),
)
def test_backlog_keeps_the_order_and_the_content_of_outputs(
    drawn: list[tuple[int, int, Part | None, bool]], taken_at: set[int]
) -> None:
    """`drawn`: choice, number of tokens, part, and whether log probabilities are asked for."""
    backlog = TokenBacklog()
    waiting: list[EngineOutput] = []
    emitted: list[EngineOutput] = []
    taken: list[EngineOutput] = []
    positions = [0, 0, 0]
    for number, (choice, count, part, has_logprobs) in enumerate(drawn):
        if number in taken_at:
            backlog.forget()
            taken += waiting
            waiting = []
        start = positions[choice]
        positions[choice] += count
        ids = list(range(start, start + count))
        entries = LazySequence(entry, range(start, start + count)) if has_logprobs else None
        output = Tokens(
            choice,
            [f"{choice}.{place}" for place in ids],
            ids=ids,
            at_s=float(number),
            logprobs=entries,
            finish=None,
            part=part,
        )
        emitted.append(output)
        backlog.hold(output, waiting)
    taken += waiting
    for choice in range(3):
        assert shown(taken, choice) == shown(emitted, choice)


def test_waiting_tokens_of_one_reply_part_are_merged_into_one_output() -> None:
    backlog = TokenBacklog()
    waiting: list[EngineOutput] = []
    for position in range(100):
        finish = Finish("stop") if position == 99 else None
        entries = LazySequence(entry, range(position, position + 1))
        backlog.hold(
            Tokens(0, ["a"], ids=[position], at_s=float(position), logprobs=entries, finish=finish),
            waiting,
        )
    (merged,) = waiting
    assert isinstance(merged, Tokens)
    assert (len(merged.ids), merged.at_s, merged.finish) == (100, 99.0, Finish("stop"))


def test_merging_waiting_tokens_does_not_modify_the_merged_outputs() -> None:
    backlog = TokenBacklog()
    waiting: list[EngineOutput] = []
    first = Tokens(0, ["a"], [1], 0.0)
    backlog.hold(first, waiting)
    backlog.hold(Tokens(0, ["b"], [2], 1.0), waiting)
    assert (first.texts, first.ids) == (["a"], [1])

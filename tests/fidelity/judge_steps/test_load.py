"""Loads for older releases of vLLM."""

from fidelity.judge_steps.load import FAILED, Load, Plan, load_for


def _load() -> Load:
    plans = [
        Plan(
            name=str(lost_block),
            request=0,
            step=0,
            prompt=[1],
            output_tokens=1,
            max_tokens=1,
            lost_block=lost_block,
        )
        for lost_block in (None, 3, FAILED)
    ]
    return Load(
        number=0,
        kind="plain",
        block_size=16,
        blocks=8,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        is_asynchronous=False,
        is_threshold_adaptive=True,
        max_num_active_seqs=2,
        plans=plans,
    )


def test_load_for_a_newer_release_keeps_all_options() -> None:
    assert load_for(_load(), (0, 31)) == _load()


def test_load_for_an_older_release_lacks_its_missing_options() -> None:
    load = load_for(_load(), (0, 30))
    assert not load.is_threshold_adaptive
    assert load.max_num_active_seqs is None
    assert load.plans == _load().plans


def test_transfers_lose_all_blocks_where_they_cannot_fail_as_a_whole() -> None:
    lost_blocks = [plan.lost_block for plan in load_for(_load(), (0, 29)).plans]
    assert lost_blocks == [None, 3, 0]

"""The policies of a server's engine, and the scheduler that follows from them."""

import pytest

from app.core.application import create_app
from app.core.engine.engine import Engine
from app.core.engine.exact_scheduler import ExactScheduler
from app.core.engine.plain_scheduler import PlainScheduler
from app.core.engine.scheduler import Scheduler
from app.core.engine.step_executor import StepExecutor
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.settings import load

DRAFTS = (
    '{"method": "eagle", "model": "e", "num_speculative_tokens": 3,'
    ' "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}'
)


def scheduler_of(*flags: str) -> Scheduler[SteppedSequence]:
    app = create_app(load(("--timing", "steps", *flags), {}))
    engine = app._engine
    assert isinstance(engine, Engine) and isinstance(engine.executor, StepExecutor)
    return engine.executor.scheduler


@pytest.mark.parametrize(
    ("flags", "names", "kind"),
    [
        ((), [], PlainScheduler),
        (("--vllm-version", "0.32", "--prefill-schedule-interval", "4"), [], PlainScheduler),
        (("--prefill-schedule-interval", "4"), ["PrefillSpacing"], PlainScheduler),
        (("--kv-connector", "nixl"), ["DeferredFrees"], PlainScheduler),
        (("--speculative-config", DRAFTS), ["SpeculativeDecoding"], ExactScheduler),
        (
            ("--enable-kvcache", "--kv-connector", "offloading", "--kv-offload-size", "1"),
            ["Offloads", "DeferredFrees"],
            PlainScheduler,
        ),
    ],
)
def test_settings_choose_the_policies_and_the_scheduler(
    flags: tuple[str, ...], names: list[str], kind: type[Scheduler[SteppedSequence]]
) -> None:
    if "--vllm-version" not in flags:
        flags = ("--vllm-version", "0.33", *flags)
    scheduler = scheduler_of(*flags)
    policies = [type(policy).__name__ for policy in scheduler.policies]
    assert [name for name in policies if name not in ("PassedOver", "EarlyAdapters")] == names
    assert type(scheduler) is kind

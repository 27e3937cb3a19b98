"""Where the steps of two schedulers part, and the smallest load that still shows it."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from fidelity.judge_steps.load import Load, Plan, Step, Steps

FIELDS = Step.__struct_fields__
MAX_ATTEMPTS = 400
"""Maximum number of loads that are tried to make one smaller."""
MAX_TEXT = 300
MAX_DELAY = 3
"""Maximum number of steps by which events of a reply may be late.

vLLM caches a full block of a reply when it schedules the request again, Understudy when the step is
over. Between the two is more than a step where steps compute nothing for the request.
"""


class Difference(msgspec.Struct):
    """The first difference: a field of a step, and its two values."""

    step: int
    field: str
    vllm: object
    ours: object

    def __str__(self) -> str:
        values = f"    vLLM {_short(self.vllm)}\n    ours {_short(self.ours)}"
        return f"step {self.step}, {self.field}:\n{values}"


def first_difference(vllm: Steps, ours: Steps) -> Difference | None:
    """Returns the first difference of the steps of a load; None if they are equal."""
    ours = msgspec.convert(msgspec.to_builtins(ours), Steps)
    align_events(vllm, ours)
    for number, (theirs, step) in enumerate(zip(vllm.steps, ours.steps, strict=False)):
        if theirs == step:
            continue
        for field in FIELDS:
            values = getattr(theirs, field), getattr(step, field)
            if values[0] != values[1]:
                return Difference(number, field, *values)
    if len(vllm.steps) != len(ours.steps):
        return Difference(
            step=min(len(vllm.steps), len(ours.steps)),
            field="number of steps",
            vllm=len(vllm.steps),
            ours=len(ours.steps),
        )
    if vllm.error != ours.error:
        return Difference(len(vllm.steps), "error", vllm.error, ours.error)
    return None


def is_late_block(load: Load, vllm: Steps, ours: Steps, difference: Difference) -> bool:
    """Returns whether a load differs only by a block of a reply that we have not yet cached.

    vLLM caches a full block while it makes the next step of a request, even if it preempts the
    request later in that step. Understudy caches the block when a step is over, and computes these
    tokens again; the block of a preempted request has no events, and cannot be found.
    """
    number = difference.step
    if difference.field == "events":
        return _are_of_victims(load, vllm, ours, number)
    if difference.field not in ("tokens", "admitted"):
        return False
    plans = {plan.name: plan for plan in load.plans}
    our_cached = dict(ours.steps[number].admitted)  # without a request that does not fit otherwise
    missing = [
        _last_block(plans[name], cached, load.block_size)
        for name, cached in vllm.steps[number].admitted
        if cached > our_cached.get(name, 0)
    ]
    first = max(0, number - MAX_DELAY)
    our_events = [event for step in ours.steps[first : number + 1] for event in step.events]
    late_events = [
        event
        for step in vllm.steps[first : number + 2]
        for event in step.events
        if event not in our_events
    ]
    if missing and missing[0] in _stored_blocks(late_events, load.block_size):
        return True
    return _are_of_victims(load, vllm, ours, number)


def is_exhausted_pool(vllm: Steps, difference: Difference) -> bool:
    """Returns whether vLLM's scheduler failed where it had promised a block too much.

    It does not count the state that a prompt loads from a store, if the cache has Mamba groups. The
    steps before are equal.
    """
    is_last = difference.step >= len(vllm.steps) - 1
    return is_last and "free blocks from the pool" in vllm.error


def _are_of_victims(load: Load, vllm: Steps, ours: Steps, number: int) -> bool:
    """Returns whether the events that differ in a step are of replies of preempted requests."""
    size = load.block_size
    victims = {
        name
        for step in vllm.steps[max(0, number - MAX_DELAY) : number + 1]
        for name in step.preempted
    }
    preempted = [plan for plan in load.plans if plan.name in victims]
    reply_blocks = [block for plan in preempted for block in _reply_blocks(plan, size)]
    hashes = set()
    for step in vllm.steps[: number + 1]:
        for event in step.events:
            for block, block_hash in _stored_hashes(event, size):
                if block in reply_blocks:
                    hashes.add(block_hash)
    differing = _without(vllm.steps[number].events, ours.steps[number].events)
    differing += _without(ours.steps[number].events, vllm.steps[number].events)
    return bool(differing) and all(
        isinstance(event, dict) and hashes.issuperset(event.get("block_hashes", [None]))
        for event in differing
    )


def _reply_blocks(plan: Plan, size: int) -> list[list[int]]:
    """Returns the whole blocks of a request that contain tokens of its reply."""
    tokens = plan.tokens(len(plan.prompt) + plan.output_tokens)
    return _blocks(tokens[len(plan.prompt) // size * size :], size)


def _blocks(tokens: list[int], size: int) -> list[list[int]]:
    """Returns the whole blocks of tokens."""
    return [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]


def _stored_hashes(event: object, size: int) -> list[tuple[list[int], object]]:
    """Returns the tokens and the hash of each block that an event stores.

    Events of cache groups that do not keep all blocks have more tokens than hashes.
    """
    if not isinstance(event, dict) or event["type"] != "BlockStored":
        return []
    blocks = _stored_blocks([event], size)
    hashes = event.get("block_hashes", [])
    if len(blocks) != len(hashes):
        return []
    return list(zip(blocks, hashes, strict=True))


def _without(events: Sequence[object], others: Sequence[object]) -> list[object]:
    """Returns the events that `others` lacks, or has less often."""
    remaining = list(events)
    for event in others:
        if event in remaining:
            remaining.remove(event)
    return remaining


def _last_block(plan: Plan, tokens: int, size: int) -> list[int]:
    """Returns the last whole block of a request's first `tokens`."""
    return plan.tokens(tokens)[tokens - size :]


def _stored_blocks(events: Sequence[object], size: int) -> list[list[int]]:
    """Returns the tokens of each block that events store."""
    blocks: list[list[int]] = []
    for event in events:
        if isinstance(event, dict) and event["type"] == "BlockStored":
            tokens = event["token_ids"]
            blocks += [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return blocks


def align_events(vllm: Steps, ours: Steps) -> int:
    """Moves our late events to the steps of vLLM's; returns how many these are."""
    moved = 0
    for number, (theirs, step) in enumerate(zip(vllm.steps, ours.steps, strict=False)):
        if theirs.events == step.events:
            continue
        for event in [event for event in step.events if event not in theirs.events]:
            for earlier in range(max(0, number - MAX_DELAY), number):
                events = ours.steps[earlier].events
                if event in vllm.steps[earlier].events and event not in events:
                    step.events.remove(event)
                    events.append(event)
                    events.sort(key=str)
                    moved += 1
                    break
    return moved


def shrink(load: Load, compare: Callable[[Load], Difference | None], field: str) -> Load:
    """Returns a smaller load whose first difference is in the same field."""
    attempts = 0
    is_smaller = True
    while is_smaller and attempts < MAX_ATTEMPTS:
        is_smaller = False
        for candidate in _smaller(load):
            attempts += 1
            difference = compare(candidate)
            if difference is not None and difference.field == field:
                load = candidate
                is_smaller = True
                break
            if attempts >= MAX_ATTEMPTS:
                break
    return load


def _smaller(load: Load) -> Iterator[Load]:
    """Yields loads with fewer and shorter requests, the smallest first."""
    yield from _with_fewer_plans(load)
    for index in range(len(load.inputs)):
        yield msgspec.structs.replace(load, inputs=load.inputs[:index] + load.inputs[index + 1 :])
    for index, plan in enumerate(load.plans):
        changes: list[dict[str, object]] = []
        if len(plan.prompt) > 1:
            half = len(plan.prompt) // 2
            images = [image for image in plan.images if image.start + image.length <= half]
            changes.append({"prompt": plan.prompt[:half], "images": images})
        if plan.output_tokens > 1 and plan.output_tokens == plan.max_tokens:
            half = plan.output_tokens // 2
            changes.append({"output_tokens": half, "max_tokens": half})
        if plan.step:
            changes.append({"step": 0})
        for change in changes:
            plans = [*load.plans]
            plans[index] = msgspec.structs.replace(plan, **change)
            yield msgspec.structs.replace(load, plans=plans)


def _with_fewer_plans(load: Load) -> Iterator[Load]:
    size = len(load.plans) // 2
    while size:
        for start in range(0, len(load.plans), size):
            plans = load.plans[:start] + load.plans[start + size :]
            if plans:
                yield msgspec.structs.replace(load, plans=plans)
        size //= 2


def _short(value: object) -> str:
    text = str(value)
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + " ..."
    return text

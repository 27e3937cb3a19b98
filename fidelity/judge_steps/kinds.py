"""Random loads by kind: each kind contains what one rule of the scheduler depends on.

Start with `make_load`. A load is determined by its seed and number.
"""

from collections.abc import Callable, Mapping
from random import Random

from fidelity.judge_steps.load import (
    FAILED,
    MAX_ADAPTER,
    MIN_MODEL_LENGTH,
    OFFLOAD,
    REMOTE,
    SPARE_TOKENS,
    STORE,
    TOKEN_COUNT,
    Group,
    Image,
    Input,
    Load,
    Plan,
)

MAX_REQUESTS = 20
LARGE_REQUESTS = 50
"""Maximum number of requests of some loads, whose replies are longer, too."""
LARGE_SHARE = 0.05
MAX_CHOICES = 10
"""vLLM sorts the choices of a request by priority as texts: 10 would come before 2."""
SALTS = (None, "salt", "pepper")
GROUP_KINDS = ("window", "mamba", "store-groups")
"""Kinds of loads with cache groups, which need the extension `cache_groups`."""
TIER_KINDS = ("offload", "offload-drafts")
"""Kinds of loads with tiers, which need the extension `kv_offload`."""
IMAGE_TOKEN = 7
"""Token that stands for a part of an image."""
IMAGE_LENGTHS = (3, 10, 16, 40, 100, 250)
IMAGE_COUNT = 8
"""Number of different images of a load."""
TIGHT_SPARE_BLOCKS = (1, 3, 8, 20)
"""Blocks besides those of the longest request: a few requests compete for them."""


class Draft:
    """A load in the making: the requests of all kinds are drawn alike, and changed by the kind."""

    def __init__(self, rng: Random, load: Load) -> None:
        self.rng = rng
        self.load = load

    @property
    def max_tokens(self) -> int:
        """Length of the longest request."""
        return max(len(plan.prompt) + plan.max_tokens for plan in self.load.plans)

    @property
    def needed_blocks(self) -> int:
        """Blocks of the longest request, its drafts, and one for the token after a stop."""
        tokens = self.max_tokens + 4 * self.load.max_drafts
        groups = max(1, len(self.load.groups))
        return (-(-tokens // self.load.block_size) + 1) * groups

    def share_prefixes(self) -> None:
        """Lets most prompts begin like others, in a cache of prefixes."""
        rng = self.rng
        load = self.load
        load.caches_prefixes = True
        load.hash_algorithm = rng.choice(["sha256", "sha256_cbor"])
        stems = [
            [rng.randrange(TOKEN_COUNT) for _ in range(rng.choice([16, 33, 64, 200]))]
            for _ in range(3)
        ]
        for plan in load.plans:
            if rng.random() < 0.7:
                length = max(len(plan.prompt), 300)
                plan.prompt = (rng.choice(stems) + plan.prompt)[:length]
        self.limit_blocks(5, 50, 1000)

    def limit_blocks(self, *spare_blocks: int) -> None:
        """Sets the number of blocks, with the null block."""
        self.load.blocks = self.needed_blocks + self.rng.choice(spare_blocks) + 1

    def command(self, name: str, share: float) -> None:
        """Adds a command after some of the arrivals."""
        for plan in self.load.plans:
            if self.rng.random() < share:
                self.load.inputs.append(Input(step=plan.step + self.rng.randrange(5), command=name))

    def abort(self, share: float) -> None:
        """Aborts some of the requests."""
        for plan in self.load.plans:
            if self.rng.random() < share:
                step = plan.step + self.rng.randrange(40)
                self.load.inputs.append(Input(step=step, abort=plan.name))

    def stop_early(self, share: float) -> None:
        """Lets some replies end before `max_tokens`."""
        for plan in self.load.plans:
            if self.rng.random() < share:
                plan.max_tokens += self.rng.choice([1, 2, 30])


def _plain(draft: Draft) -> None:
    """Free blocks are never scarce."""


def _tight(draft: Draft) -> None:
    """Requests are preempted."""
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS)


def _priority(draft: Draft) -> None:
    """Requests of a low priority are preempted: many run, and their replies are long."""
    load = draft.load
    load.by_priority = True
    load.max_num_seqs = max(16, load.max_num_seqs)
    for plan in load.plans:
        plan.priority = draft.rng.randrange(3)
        extra_tokens = draft.rng.randrange(60)
        plan.output_tokens += extra_tokens
        plan.max_tokens += extra_tokens
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS)


def _long(draft: Draft) -> None:
    """Long prompts are computed in small parts."""
    load = draft.load
    longest = max(len(plan.prompt) + plan.output_tokens for plan in load.plans)
    load.long_prefill_token_threshold = min(draft.rng.choice([8, 32, 100]), longest)
    load.is_threshold_adaptive = draft.rng.random() < 0.5


def _whole(draft: Draft) -> None:
    """Prompts are computed whole."""
    load = draft.load
    load.enable_chunked_prefill = False
    tokens = max(MIN_MODEL_LENGTH, draft.max_tokens + SPARE_TOKENS)
    load.max_num_batched_tokens = max(load.max_num_batched_tokens, tokens)


def _prefix(draft: Draft) -> None:
    draft.share_prefixes()


def _adapters(draft: Draft) -> None:
    draft.load.max_loras = draft.rng.choice([1, 2, 3])
    for plan in draft.load.plans:
        plan.adapter = draft.rng.choice([0, 0, 1, 2, 3, MAX_ADAPTER])
    if draft.rng.random() < 0.5:
        draft.share_prefixes()


def _reload(draft: Draft) -> None:
    """Adapters are loaded and unloaded while requests with them wait and run."""
    _adapters(draft)
    rng = draft.rng
    for plan in draft.load.plans:
        if rng.random() < 0.5:
            item = Input(
                step=plan.step + rng.randrange(5),
                command=rng.choice(["load", "load", "unload"]),
                adapter=rng.randint(1, MAX_ADAPTER),
            )
            draft.load.inputs.append(item)
    if rng.random() < 0.3:
        draft.abort(0.2)
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 1000)


def _abort(draft: Draft) -> None:
    draft.abort(0.4)
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS)


def _stop(draft: Draft) -> None:
    """Replies end at a token that the scheduler does not foresee."""
    draft.stop_early(0.6)
    if draft.rng.random() < 0.4:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 1000)


def _choices(draft: Draft) -> None:
    """Requests have several choices, which arrive together."""
    rng = draft.rng
    load = draft.load
    plans = []
    for plan in load.plans[:25]:
        count = rng.choice([1, 2, 3, MAX_CHOICES])
        for index in range(count):
            choice = Plan(
                name=f"{index}_{plan.name}" if count > 1 else plan.name,
                request=plan.request,
                choice=index,
                step=plan.step,
                prompt=plan.prompt,
                output_tokens=rng.randrange(1, plan.output_tokens + 1),
                max_tokens=plan.max_tokens,
            )
            plans.append(choice)
    load.plans = plans
    load.by_priority = rng.random() < 0.5
    if rng.random() < 0.5:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100)


def _pooling(draft: Draft) -> None:
    """Requests end with their prompts."""
    load = draft.load
    load.is_pooling = True
    load.is_asynchronous = False
    for plan in load.plans:
        plan.output_tokens = 0
        plan.max_tokens = 0
    if draft.rng.random() < 0.5:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS)


def _salt(draft: Draft) -> None:
    """Equal prompts have different hashes."""
    _adapters(draft)
    for plan in draft.load.plans:
        plan.salt = draft.rng.choice(SALTS)
    draft.share_prefixes()


def _reset(draft: Draft) -> None:
    """The prefix cache is emptied, which running requests prevent."""
    draft.share_prefixes()
    draft.command("reset", 0.3)


def _reset_running(draft: Draft) -> None:
    """The prefix cache is emptied in any case."""
    draft.share_prefixes()
    draft.command("reset-running", 0.1)


def _pause(draft: Draft) -> None:
    """No request is admitted for a time, or nothing is computed."""
    rng = draft.rng
    draft.command(rng.choice(["pause", "keep"]), 0.1)
    draft.command("resume", 0.1)
    if rng.random() < 0.5:
        draft.share_prefixes()
    draft.load.inputs.append(Input(step=1 << 30, command="resume"))
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS)


def _watermark(draft: Draft) -> None:
    """An admission leaves many blocks free."""
    draft.load.watermark = draft.rng.choice([0.1, 0.3])
    draft.load.max_num_seqs = 64
    draft.limit_blocks(3, 8, 20, 40)


def _interval(draft: Draft) -> None:
    """Steps with prompts have a distance, which only vLLM 0.33 and later keep in one engine."""
    draft.load.prefill_schedule_interval = draft.rng.choice([2, 3, 8])
    if draft.rng.random() < 0.5:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 1000)


def _drafts(draft: Draft) -> None:
    """Steps check several tokens of a reply."""
    rng = draft.rng
    load = draft.load
    load.drafter = rng.choice(["ngram", "draft_model"])
    load.max_drafts = rng.choice([1, 3, 5])
    load.max_num_batched_tokens = max(load.max_num_batched_tokens, 8 * load.max_num_seqs)
    if rng.random() < 0.4:
        draft.stop_early(0.6)
    if rng.random() < 0.4:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100)


def _active(draft: Draft) -> None:
    """Fewer requests run than the engine has places for."""
    load = draft.load
    load.max_num_active_seqs = draft.rng.randint(1, load.max_num_seqs)
    if draft.rng.random() < 0.5:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 1000)


def _group(draft: Draft, *groups: Group) -> None:
    load = draft.load
    load.groups = [Group("full_attention"), *groups]
    draft.rng.shuffle(load.groups)
    load.retention_interval = draft.rng.choice([None, 0, load.block_size, 4 * load.block_size])
    if draft.rng.random() < 0.3:
        draft.abort(0.3)
    if draft.rng.random() < 0.3:
        draft.stop_early(0.5)
    draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100, 1000)


def _window(draft: Draft) -> None:
    """Layers with a sliding window free blocks that lie before it."""
    rng = draft.rng
    windows = [Group("sliding_window", rng.choice([2, 16, 40, 128])) for _ in range(2)]
    if rng.random() < 0.5:
        windows[1] = windows[0]
    _group(draft, *windows[: rng.randint(1, 2)])


def _mamba(draft: Draft) -> None:
    """Layers with a state keep the state at the end of a step."""
    states = [Group("mamba")] * draft.rng.randint(1, 2)
    if draft.rng.random() < 0.2:
        states.append(Group("sliding_window", 40))
    _group(draft, *states)


def _remote(draft: Draft) -> None:
    """Other engines compute prompts, and send their caches, which may be lost."""
    rng = draft.rng
    draft.load.connector = REMOTE
    for plan in draft.load.plans:
        plan.is_remote = rng.random() < 0.7
        plan.transfer_steps = rng.choice([1, 1, 2, 5, 20])
        if rng.random() < 0.3:
            plan.lost_block = rng.choice([FAILED, 0, 0, 1, 3])
    if rng.random() < 0.3:
        draft.load.by_priority = True
        for plan in draft.load.plans:
            plan.priority = rng.randrange(3)
    if rng.random() < 0.3:
        draft.abort(0.3)
    if rng.random() < 0.3:
        draft.stop_early(0.5)
    if rng.random() < 0.6:
        draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100, 1000)


def _store(draft: Draft) -> None:
    """Prompts load the blocks of earlier ones, which are evicted from the cache."""
    draft.load.connector = STORE
    if draft.rng.random() < 0.3:
        draft.stop_early(0.5)
    draft.share_prefixes()
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100)


def _offload(draft: Draft) -> None:
    """Prompts load blocks from a tier of CPU blocks, which is full at times."""
    rng = draft.rng
    load = draft.load
    load.connector = OFFLOAD
    load.tier_chunks = rng.choice([3, 10, 30, 200])
    load.chunk_blocks = rng.choice([1, 1, 2, 3])
    load.tier_policy = rng.choice(["lru", "arc"])
    load.store_threshold = rng.choice([0, 0, 2])
    draft.share_prefixes()
    for plan in load.plans:
        if rng.random() < 0.3:
            plan.prompt = list(rng.choice(load.plans).prompt)
        if rng.random() < 0.3:
            plan.prompt = plan.prompt[
                : max(1, len(plan.prompt) // load.block_size) * load.block_size
            ]
    if rng.random() < 0.3:
        draft.stop_early(0.5)
    if rng.random() < 0.3:
        draft.abort(0.3)
    if rng.random() < 0.3:
        load.by_priority = True
        for plan in load.plans:
            plan.priority = rng.randrange(3)
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100)


def _offload_drafts(draft: Draft) -> None:
    """Prompts load blocks from a tier, and steps check several tokens of a reply."""
    _drafts(draft)
    _offload(draft)


def _store_groups(draft: Draft) -> None:
    """A store has the blocks of cache groups."""
    draft.rng.choice([_window, _mamba])(draft)
    draft.load.connector = STORE


def _store_drafts(draft: Draft) -> None:
    """Prompts load blocks, and steps check several tokens of a reply."""
    _drafts(draft)
    _store(draft)


def _remote_drafts(draft: Draft) -> None:
    """Other engines compute prompts, and steps check several tokens of a reply."""
    _drafts(draft)
    _remote(draft)


def _images(draft: Draft) -> None:
    """Prompts contain images, which a step encodes unless the encoder cache has them."""
    rng = draft.rng
    load = draft.load
    lengths = [
        min(rng.choice(IMAGE_LENGTHS), load.max_num_batched_tokens) for _ in range(IMAGE_COUNT)
    ]
    if rng.random() < 0.7:
        draft.share_prefixes()
    for index, plan in enumerate(load.plans):
        if index and rng.random() < 0.3:
            earlier = rng.choice(load.plans[:index])
            plan.images = list(earlier.images)
            if earlier.images:  # the next turn of a conversation
                end = earlier.images[-1].start + earlier.images[-1].length
                plan.prompt = earlier.prompt[:end] + plan.prompt
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            _insert_image(plan, rng.randrange(IMAGE_COUNT), lengths, rng)
    longest = max(lengths)
    sizes = [longest, longest + 5, 2 * longest, max(longest, load.max_num_batched_tokens)]
    load.encoder_budget = rng.choice(sizes)
    load.encoder_cache_size = rng.choice(sizes)
    load.disable_chunked_mm_input = rng.random() < 0.3
    if rng.random() < 0.2:
        draft.abort(0.3)
    if rng.random() < 0.2:
        draft.stop_early(0.5)
    if rng.random() < 0.3:
        load.by_priority = True
        for plan in load.plans:
            plan.priority = rng.randrange(3)
    draft.limit_blocks(*TIGHT_SPARE_BLOCKS, 100, 1000)


def _insert_image(plan: Plan, image: int, lengths: list[int], rng: Random) -> None:
    """Inserts an image behind the last one of a prompt."""
    end = 0
    if plan.images:
        end = plan.images[-1].start + plan.images[-1].length
    start = rng.randint(end, len(plan.prompt))
    tokens = [IMAGE_TOKEN] * lengths[image]
    plan.prompt = plan.prompt[:start] + tokens + plan.prompt[start:]
    plan.images.append(Image(f"image-{image}", start, lengths[image]))


def _mixed(draft: Draft) -> None:
    """Several of the above at the same time."""
    rng = draft.rng
    for change in rng.sample([_priority, _long, _stop, _salt, _abort, _prefix, _interval], 3):
        change(draft)


KINDS: Mapping[str, Callable[[Draft], None]] = {
    "plain": _plain,
    "tight": _tight,
    "priority": _priority,
    "long": _long,
    "whole": _whole,
    "prefix": _prefix,
    "adapters": _adapters,
    "abort": _abort,
    "stop": _stop,
    "choices": _choices,
    "pooling": _pooling,
    "salt": _salt,
    "reset": _reset,
    "reset-running": _reset_running,
    "pause": _pause,
    "watermark": _watermark,
    "interval": _interval,
    "drafts": _drafts,
    "mixed": _mixed,
    "active": _active,
    "window": _window,
    "mamba": _mamba,
    "remote": _remote,
    "store": _store,
    "reload": _reload,
    "offload": _offload,
    "offload-drafts": _offload_drafts,
    "store-groups": _store_groups,
    "store-drafts": _store_drafts,
    "remote-drafts": _remote_drafts,
    "images": _images,
}


def make_load(seed: int, number: int, kind: str, max_requests: int = 0) -> Load:
    """Returns a load of a kind, with half to all of `max_requests`; 0 draws this number, too."""
    rng = Random(f"{seed}/{number}/{kind}")
    if not max_requests:
        max_requests = MAX_REQUESTS
        if rng.random() < LARGE_SHARE:
            max_requests = LARGE_REQUESTS
    max_num_seqs = rng.choice([2, 4, 8, 16, 64])
    load = Load(
        number=number,
        kind=kind,
        block_size=rng.choice([16, 16, 32]),
        blocks=0,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, rng.choice([64, 128, 256, 512, 2048])),
        is_asynchronous=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.0, 0.02]),
        plans=_draw_plans(rng, max_requests),
    )
    draft = Draft(rng, load)
    load.blocks = draft.needed_blocks * max_num_seqs + 11
    KINDS[kind](draft)
    load.blocks = max(load.blocks, draft.needed_blocks + 2)
    load.inputs.sort(key=lambda item: item.step)
    return load


def _draw_plans(rng: Random, max_requests: int) -> list[Plan]:
    max_prompt = rng.choice([60, 200, 700])
    max_outputs = [3, 20, 60] if max_requests <= MAX_REQUESTS else [3, 40, 150]
    plans = []
    step = 0
    for number in range(rng.randint(max_requests // 2, max_requests)):
        step += rng.choice([0, 0, 0, 1, 1, 2, 5, 30])
        length = rng.randrange(1, max_prompt + 1)
        output_tokens = rng.randrange(1, rng.choice(max_outputs))
        plan = Plan(
            name=str(number),
            request=number,
            step=step,
            prompt=[rng.randrange(TOKEN_COUNT) for _ in range(length)],
            output_tokens=output_tokens,
            max_tokens=output_tokens,
        )
        plans.append(plan)
    return plans

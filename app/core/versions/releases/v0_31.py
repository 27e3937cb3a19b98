"""Changes of vLLM 0.31 to chats and completions, and in the scheduler."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import bad_request, internal
from app.core.versions.change import Answer, Change, Event, Reading, Rules
from app.core.versions.paths import OPENAI

SCHEDULER = "app.core.engine.batch.SchedulerRules"
MEDIA_OPTIONS = ("media_io_kwargs", "mm_processor_kwargs")
OPTIONS_PATHS = ("/v1/chat/completions", "/tokenize")


def ignore_media_options(request: Any) -> None:
    """Removes the options of media, which have no effect on texts."""
    for name in MEDIA_OPTIONS:
        request.pop(name, None)


def refuse_suffix(request: Any) -> None:
    """Refuses a suffix.

    Raises:
        ApiError: 400.
    """
    if request.get("suffix") is not None:
        raise bad_request("suffix is not currently supported")


def chooses_lines(request: JsonObject) -> bool:
    """Returns whether the reply is a choice among texts with line breaks."""
    form = request.get("structured_outputs")
    choices = form.get("choice") if isinstance(form, dict) else None
    return isinstance(choices, list) and any("\n" in str(choice) for choice in choices)


def fail_whole(answer: Any, request: JsonObject) -> None:
    """Fails, as the engine does.

    Raises:
        ApiError: 500.
    """
    raise internal("Internal server error")


def end_early(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that keeps the first chunk of a stream alone."""
    has_begun = False

    def older(event: Event) -> Iterator[Event]:
        nonlocal has_begun
        if not has_begun:
            yield event
        has_begun = True

    return older


CHANGES = (
    Change(
        area="Chat and completions",
        before="`suffix` is an error that names no field.",
        after="The error names `suffix`, and says that models with FIM support it.",
        forms=(Reading(paths=("/v1/completions",), read=refuse_suffix),),
    ),
    Change(
        area="Chat and completions",
        before="`media_io_kwargs` and `mm_processor_kwargs` are accepted.",
        after="They are rejected, unless `--trust-request-mm-kwargs` allows them.",
        forms=(Reading(paths=OPTIONS_PATHS, read=ignore_media_options),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A choice of texts of which one has a line break fails with 500. Its stream ends "
        "after the first chunk. Before vLLM 0.26, the engine ends.",
        after="The choice constrains the reply.",
        forms=(
            Answer(
                paths=OPENAI,
                whole=fail_whole,
                events=end_early,
                since="0.26.0",
                only=chooses_lines,
            ),
        ),
    ),
    Change(
        area="Scheduler",
        before="`--long-prefill-token-threshold` holds for each prompt.",
        after="The threshold does not hold for a request that is alone.",
        forms=(Rules(SCHEDULER, {"exempts_lone_prompt": False}),),
        options=("long-prefill-token-threshold",),
    ),
    Change(
        area="Scheduler",
        before="The hash of a block has the bare values of its extra keys. An adapter that is "
        "loaded again from another path finds the blocks of the former one. The hash of a block "
        "with several images and tokens of the reply has the key of the last image.",
        after="The hash names the kind of each key, and has the path of the adapter and the keys "
        "of all images.",
        forms=(Rules(SCHEDULER, {"tags_hash_keys": False}),),
        options=("enable-lora", "kv-events-config"),
    ),
    Change(
        area="Scheduler",
        before="A preempted request waits behind the requests that an earlier step passed over "
        "because their adapters had no room.",
        after="A preempted request waits before them.",
        forms=(Rules(SCHEDULER, {"forgets_passes": False}),),
        options=("enable-lora",),
    ),
    Change(
        area="Scheduler",
        before="With priority scheduling, a request whose transfer has arrived waits in the order "
        "of priorities.",
        after="Such a request goes before all others, which hold no blocks.",
        forms=(Rules(SCHEDULER, {"prefers_kv_holders": False}),),
        options=("scheduling-policy",),
    ),
    Change(
        area="Scheduler",
        before="In a tier of CPU blocks, each lookup, store and load of a request counts as a use "
        "of its blocks.",
        after="A request counts as one use of its blocks, when it ends.",
        forms=(Rules(SCHEDULER, {"chunk_uses": "transfers"}),),
        options=("kv-transfer-config", "kv-offloading-size"),
    ),
    Change(
        area="Scheduler",
        before="The start of a transfer leaves no blocks free for the drafts of other requests.",
        after="Each other request keeps blocks for its first drafts.",
        forms=(Rules(SCHEDULER, {"reserves_drafts": False}),),
        options=(
            "speculative-config",
            "kv-transfer-config",
        ),
    ),
)

"""Changes of vLLM 0.26 to cache groups."""

from app.core.versions.change import Change, Rules

GROUP_RULES = "app.extensions.cache_groups.options.GroupRules"
CHANGES = (
    Change(
        area="Scheduler",
        before="With asynchronous steps, a request frees blocks before its sliding window although "
        "the step under way reads them.",
        after="The request frees these blocks when that step is over.",
        forms=(Rules(GROUP_RULES, {"frees_under_way": True}),),
        options=("model", "async-scheduling"),
    ),
    Change(
        area="Scheduler",
        before="A prompt of a hybrid model that begins like another one ends its first chunk where "
        "it begins to differ.",
        after="All its chunks end there, and the blocks before this place stay cached.",
        forms=(Rules(GROUP_RULES, {"keeps_junctions": False}),),
        options=("model",),
    ),
)

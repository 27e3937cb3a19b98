"""A small connector for vLLM: another engine that computes prompts, or a store of blocks.

vLLM loads it by `kv_connector_module_path`. It moves no memory: the judge only compares when the
scheduler admits requests, and what it computes.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from fidelity.judge_steps.load import STORE, Plan


class NoMetadata(KVConnectorMetadata):
    """There is no worker that would read anything."""


class JudgeConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's part of a connector; `kind` is the connector of a load."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.kind: str = extra["kind"]
        self.plans: dict[str, Plan] = {}
        """Plans of the requests, by their names; filled by the engine."""
        self.started: list[str] = []
        """Requests whose transfers have started since the engine last looked."""
        self.first_blocks: dict[str, int] = {}
        """Number of the first block of each transfer."""
        self._asked: set[str] = set()
        self._stored: set[Any] = set()
        """Hashes of the blocks in the store."""
        self._block_size: int = vllm_config.cache_config.block_size

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Returns the tokens after the cached ones, and whether the request waits for them."""
        if self.kind == STORE:
            return self._count_stored(request, num_computed_tokens), False
        name = request.request_id
        if not self.plans[name].is_remote or name in self._asked:
            return 0, False
        self.first_blocks[name] = num_computed_tokens // self._block_size
        tokens = request.num_prompt_tokens - num_computed_tokens
        return tokens, tokens > 0

    def _count_stored(self, request: Any, computed: int) -> int:
        first = computed // self._block_size
        last = (request.num_tokens - 1) // self._block_size
        blocks = 0
        for block_hash in request.block_hashes[first:last]:
            if block_hash not in self._stored:
                break
            blocks += 1
        return blocks * self._block_size

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Notes that a request has blocks: its transfer begins, or its prompt is stored."""
        name = request.request_id
        if self.kind == STORE:
            if not request.num_preemptions:
                whole_blocks = request.num_prompt_tokens // self._block_size
                self._stored.update(request.block_hashes[:whole_blocks])
        elif self.plans[name].is_remote and name not in self._asked:
            self._asked.add(name)
            if num_external_tokens:
                self.started.append(name)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Returns nothing for a worker."""
        return NoMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Lets the scheduler free the blocks of a request with cache groups."""
        return False, None

    # The worker's part, which never runs.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Does nothing."""

    def wait_for_save(self) -> None:
        """Does nothing."""

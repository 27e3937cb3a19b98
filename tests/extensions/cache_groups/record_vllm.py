"""Records what vLLM's KV cache manager does with the requests of `recorded/*.json`.

Run it with a Python that has vLLM 0.32; no GPU is needed:

    PYTHONHASHSEED=0 python tests/extensions/cache_groups/record_vllm.py

Each file names the layers of a model, the size of its cache, and operations on requests. The script
adds the groups that vLLM makes of the layers, and the result of every operation.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

FOLDER = Path(__file__).parent / "recorded"
KINDS = {
    FullAttentionSpec: "full_attention",
    SlidingWindowSpec: "sliding_attention",
    MambaSpec: "linear_attention",
}


def layer_specs(model):
    """Returns the spec of each layer."""
    block_size = model["block_size"]
    attention = {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 64,
        "dtype": torch.bfloat16,
    }
    page_bytes = FullAttentionSpec(**attention).page_size_bytes
    specs = {}
    for number, kind in enumerate(model["layer_types"]):
        if kind == "full_attention":
            spec = FullAttentionSpec(**attention)
        elif kind == "sliding_attention":
            spec = SlidingWindowSpec(**attention, sliding_window=model["sliding_window"])
        else:
            spec = MambaSpec(
                shapes=((1,),),
                dtypes=(torch.bfloat16,),
                block_size=block_size,
                page_size_padded=page_bytes,
                mamba_cache_mode="align",
            )
        specs[f"layers.{number}"] = spec
    return specs


class Recorder:
    """Drives a KV cache manager as vLLM's scheduler does, one operation at a time."""

    def __init__(self, example):
        model = example["model"]
        self.block_size = model["block_size"]
        self.max_batched = example["max_num_batched_tokens"]
        specs = kv_cache_utils.unify_kv_cache_spec_page_size(layer_specs(model))
        self.groups = kv_cache_utils._get_kv_cache_groups_uniform_page_size(specs)
        config = KVCacheConfig(
            num_blocks=example["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=self.groups,
            prefix_cache_retention_interval=example["retention_interval"],
        )
        fake = SimpleNamespace(
            cache_config=SimpleNamespace(
                block_size=self.block_size, prefix_match_unit=None, enable_prefix_caching=True
            ),
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            kv_transfer_config=None,
        )
        sizes = kv_cache_utils.resolve_kv_cache_block_sizes(config, fake)
        self.manager = KVCacheManager(
            config,
            max_model_len=example["max_model_len"],
            scheduler_block_size=sizes[0],
            hash_block_size=sizes[1],
            max_in_flight_tokens=self.max_batched,
            enable_kv_cache_events=True,
        )
        self.hasher = kv_cache_utils.get_request_block_hasher(sizes[1], sha256_cbor)
        self.has_linear = any(isinstance(g.kv_cache_spec, MambaSpec) for g in self.groups)
        self.scheduler = SimpleNamespace(
            block_size=self.block_size,
            cache_config=SimpleNamespace(block_size=self.block_size),
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
            hash_block_size=sizes[1],
            max_num_scheduled_tokens=self.max_batched,
            mamba_partial_cache_hit=False,
            mamba_shared_prefix_checkpoint=False,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None,
            use_eagle_block_drop=False,
        )
        self.requests = {}

    def admit(self, operation):
        """Looks a prompt up, and computes all of it."""
        tokens = []
        for first, count in operation["prompt"]:
            tokens += range(first, first + count)
        request = Request(
            operation["request"],
            tokens,
            SamplingParams(max_tokens=1000),
            None,
            cache_salt=operation.get("salt"),
            block_hasher=self.hasher,
        )
        self.requests[request.request_id] = request
        blocks, hit, boundary = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        first_chunk = True
        while request.num_computed_tokens < request.num_tokens:
            start = hit if first_chunk else request.num_computed_tokens
            new = min(request.num_tokens - start, self.max_batched)
            if self.has_linear:
                local = hit if first_chunk else 0
                new = Scheduler._mamba_block_aligned_split(self.scheduler, request, new, local)
            self.manager.new_step_starts()
            allocated = self.manager.allocate_slots(
                request,
                new,
                num_new_computed_tokens=hit if first_chunk else 0,
                new_computed_blocks=blocks if first_chunk else None,
                full_sequence_must_fit=first_chunk,
            )
            if allocated is None:
                assert first_chunk
                del self.requests[request.request_id]
                return {"hit": hit, "fits": False}
            request.num_computed_tokens = start + new
            first_chunk = False
        self._trim(request)
        return {"hit": hit, "fits": True}

    def decode(self, operation):
        """Computes reply tokens, whose ids count up from `first`."""
        request = self.requests[operation["request"]]
        for token in range(operation["first"], operation["first"] + operation["count"]):
            request.append_output_token_ids(token)
            self.manager.new_step_starts()
            allocated = self.manager.allocate_slots(request, 1)
            assert allocated is not None
            request.num_computed_tokens += 1
        self._trim(request)
        return {}

    def free(self, operation):
        """Ends a request."""
        request = self.requests.pop(operation["request"], None)
        if request is not None:
            self.manager.free(request)
        return {}

    def reset(self, operation):
        """Empties the cache."""
        return {"done": self.manager.reset_prefix_cache()}

    def _trim(self, request):
        # The next step would begin with this; the number of free blocks then is comparable.
        self.manager.remove_skipped_blocks(request.request_id, request.num_computed_tokens)

    def result(self, operation):
        """Applies an operation; returns its result, events and free blocks."""
        result = getattr(self, operation["do"])(operation)
        result["events"] = [event_fields(event) for event in self.manager.take_events()]
        result["free"] = self.manager.block_pool.get_num_free_blocks()
        return result


def event_fields(event):
    """Returns an event's fields; of the token ids only the first one and their number."""
    fields = {"type": type(event).__name__}
    if hasattr(event, "block_hashes"):
        fields |= {
            "block_hashes": event.block_hashes,
            "medium": event.medium,
            "group_idx": event.group_idx,
        }
    if hasattr(event, "token_ids"):
        extra_keys = event.extra_keys
        fields |= {
            "parent_block_hash": event.parent_block_hash,
            "first_token": event.token_ids[0],
            "token_count": len(event.token_ids),
            "block_size": event.block_size,
            "extra_keys": extra_keys if extra_keys and any(extra_keys) else None,
            "kv_cache_spec_kind": event.kv_cache_spec_kind,
            "kv_cache_spec_sliding_window": event.kv_cache_spec_sliding_window,
        }
    return fields


def main():
    """Records all examples."""
    kv_cache_utils.init_none_hash(sha256_cbor)
    config = SimpleNamespace()
    try:
        register_all_kvcache_specs(config)
    except ValueError as error:  # registered at the import
        print(error)
    for path in sorted(FOLDER.glob("*.json")):
        example = json.loads(path.read_text("utf-8"))
        recorder = Recorder(example)
        example["groups"] = [
            {"kind": KINDS[type(group.kv_cache_spec)], "layers": len(group.layer_names)}
            for group in recorder.groups
        ]
        for operation in example["operations"]:
            operation["result"] = recorder.result(operation)
        operations = ",\n".join(json.dumps(operation) for operation in example.pop("operations"))
        head = json.dumps(example, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "operations": [\n{operations}\n]}}\n', "utf-8")
        print(path.name, [operation for operation in recorder.groups and example["groups"]])


if __name__ == "__main__":
    main()

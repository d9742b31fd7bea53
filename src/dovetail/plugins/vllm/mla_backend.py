"""Dovetail's decode kernel as vLLM's attention backend for MLA, registered as `CUSTOM`.

    --attention-config '{"backend_per_kind": {"mla_attention": "CUSTOM"}}'

What it changes beside vLLM's `TRITON_MLA`: the K + 1 queries of a verification share a tile and read the cache once;
with decode context parallelism they stay on the decode path, each with its own end on its rank; log-sum-exps are
float32; FP8 rows are converted a quarter at a time and fit into sm_120's shared memory. Prefill is vLLM's own.

Nothing chooses it but the user; `plan/latent_kernels.py` has what it does beside vLLM's own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.parallel_state import get_dcp_world_size_and_rank
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

from dovetail.engine.attention.latent_rows import rows_in
from dovetail.engine.attention.partial import query_ends
from dovetail.engine.attention.triton_mla import Launch, attend_latents
from dovetail.engine.tuning.model import Work, choose
from dovetail.engine.tuning.table import RANK, ROPE, Kind, table
from dovetail.errors import EngineError

#: By vLLM's name of a cache's type, the kernel's.
CACHES: dict[str, Kind] = {
    "auto": "bfloat16",
    "float16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_ds_mla": "fp8_ds_mla",
}


class LatentBackend(MLACommonBackend):
    """Refuses, with vLLM's list of reasons, what the kernel was not made for."""

    supported_kv_cache_dtypes: ClassVar[list[str]] = list(CACHES)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[LatentImpl]:
        return LatentImpl

    @staticmethod
    def get_builder_cls() -> type[LatentMetadataBuilder]:
        return LatentMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [RANK + ROPE]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # the grid is made from the longest window that the host knows

    @classmethod
    def supports_combination(cls, *configuration: Any) -> str | None:
        # The last one is the device's capability, in both versions of vLLM.
        arch, known = _arch(configuration[-1]), dict.fromkeys(row.arch for row in table().rows)
        if arch in known:
            return None
        return f"dovetail's MLA kernel is compiled for {', '.join(known)}, and this is {arch}"


@dataclass
class LatentDecodeMetadata(MLACommonDecodeMetadata):
    """What one launch needs beside lengths.

    `starts`: int32 [sequences + 1], counts tokens. `ends`: int32 [tokens], rows of this rank that each query sees.
    """

    starts: Any
    ends: Any
    most_queries: int
    launch: Launch


class LatentMetadataBuilder(MLACommonMetadataBuilder):
    """Windows of any lengths are decoded, under decode context parallelism too."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(
            kv_cache_spec, layer_names, vllm_config, device, MLACommonMetadata, supports_dcp_with_varlen=True
        )
        self._kind = CACHES[vllm_config.cache_config.cache_dtype]
        _, self._dcp_rank = get_dcp_world_size_and_rank(self.dcp_world_size > 1)
        self._ends: Any = None

    def _build_decode(
        self,
        block_table_tensor: Any,
        seq_lens_device: Any,
        max_seq_len: int,
        query_start_loc_cpu: Any,
        query_start_loc_device: Any,
        num_decode_tokens: int,
        max_query_len: int,
        dcp_tot_seq_lens_device: Any,
    ) -> LatentDecodeMetadata:
        lengths = seq_lens_device if dcp_tot_seq_lens_device is None else dcp_tot_seq_lens_device
        ends = query_ends(query_start_loc_device, lengths, num_decode_tokens)
        if self.dcp_world_size > 1:
            ends = get_dcp_local_seq_lens(ends, self.dcp_world_size, self._dcp_rank, self.cp_kv_cache_interleave_size)
        most, heads = max(max_query_len, 1), self.num_heads * self.dcp_world_size
        return LatentDecodeMetadata(
            block_table=block_table_tensor,
            seq_lens=seq_lens_device,
            dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            starts=query_start_loc_device,
            ends=self._kept(ends),
            most_queries=most,
            launch=launch_for(self._kind, len(seq_lens_device), max_seq_len, heads, most),
        )

    def _kept(self, ends: Any) -> Any:
        """`ends` in a buffer that every step uses, because a CUDA graph reads the same memory at each replay."""
        if self._ends is None:
            graphs = self.compilation_config.max_cudagraph_capture_size or 0
            most = max(self.vllm_config.scheduler_config.max_num_batched_tokens, graphs)
            self._ends = ends.new_zeros(most)
        kept = self._ends[: len(ends)]
        kept.copy_(ends)
        return kept


class LatentImpl(MLACommonImpl):
    """The decode path of one layer. Raises `NotImplementedError`, as vLLM's backends do, for what it cannot do."""

    can_return_lse_for_decode = True
    supports_dcp = True
    supports_pcp = False
    supports_mtp_with_cp_non_trivial_interleave_size = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Any,
        sliding_window: Any,
        kv_cache_dtype: str,
        logits_soft_cap: Any,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        refused = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
            f"a KV cache of {kv_cache_dtype}": kv_cache_dtype not in CACHES,
            f"latents other than {RANK} + {ROPE}": (mla_args["kv_lora_rank"], mla_args["qk_rope_head_dim"])
            != (RANK, ROPE),
        }
        for what, present in refused.items():
            if present:
                raise NotImplementedError(f"dovetail's MLA backend has no {what}: use another --attention-backend")
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla_args,
        )
        self.supports_quant_query_input = False  # FP8 rows are multiplied with queries in float16
        self._kind = CACHES[kv_cache_dtype]

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> tuple[Any, Any]:
        """Mixed latents [tokens, heads, 512] of the queries' type, and float32 log-sum-exps (base e) [tokens, heads].

        `q`: [tokens, heads, 576], or its two parts; `kv_c_and_k_pe_cache`: [blocks, block size, numbers of a row].
        """
        if isinstance(q, tuple):
            latent, rotated = q
            q = latent.new_empty(*latent.shape[:2], RANK + ROPE)
            q[..., :RANK], q[..., RANK:] = latent, rotated
        cache, decode = kv_c_and_k_pe_cache, attn_metadata.decode
        if not cache.is_contiguous():
            raise EngineError(
                f"dovetail's MLA backend reads a cache whose blocks follow each other, and this one has strides "
                f"{tuple(cache.stride())} for shape {tuple(cache.shape)}: use another --attention-backend"
            )
        kind = self._kind if self._kind in ("fp8", "fp8_ds_mla") else "auto"
        rows = rows_in(kind, cache.view(-1, cache.shape[-1]), RANK, ROPE, layer._k_scale_float)
        table_of_blocks = decode.block_table
        return attend_latents(
            *(q, rows, table_of_blocks.contiguous(), decode.starts, decode.ends),
            rank=RANK,
            block_size=cache.shape[1],
            most_queries=decode.most_queries,
            launch=decode.launch,
            score_scale=self.scale,
        )


def launch_for(kind: Kind, batch: int, context: int, heads: int, queries: int) -> Launch:
    """The table's choice for the GPU of this process; contexts are rounded up to a power of two, for few variants."""
    return _launch(_arch(current_platform.get_device_capability()), kind, batch, context, heads, queries)


def _rounded(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


@functools.lru_cache(4096)
def _launch(arch: str, kind: Kind, batch: int, context: int, heads: int, queries: int) -> Launch:
    chosen = choose(table(), arch, kind, Work(batch, _rounded(context), heads, queries))
    candidate = chosen.row.candidate
    return Launch(candidate.block_n, candidate.tile, candidate.stages, candidate.warps, chosen.queries, chosen.splits)


def _arch(capability: Any) -> str:
    return "no GPU of NVIDIA's" if capability is None else f"sm_{capability.major}{capability.minor}"

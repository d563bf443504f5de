"""Load the block allocators of real servers straight from their wheels, without the servers.

Only the allocators' own modules run, exactly as shipped; every other module of a server is a
stand-in whose names are empty classes. vLLM's need nothing but the wheel, SGLang's needs torch too.
The wheels are looked for in the folder that KVRECLAIM_WHEELS names:

    pip download --no-deps -d "$KVRECLAIM_WHEELS" vllm==0.33.0 sglang==0.5.23
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

VLLM: Final = "vllm-0.33.0"
SGLANG: Final = "sglang-0.5.23"


def wheel_of(release: str) -> Path | None:
    """Return the wheel of a release, or None where there is none."""
    folder = os.environ.get("KVRECLAIM_WHEELS")
    return None if not folder else next(Path(folder).glob(f"{release}-*.whl"), None)


class _EmptyClass(type):
    """A class of which any attribute is an empty class again, always the same one."""

    def __getattr__(cls, name: str) -> _EmptyClass:
        if name.startswith("__"):
            raise AttributeError(name)
        empty = _EmptyClass(name, (), {})
        setattr(cls, name, empty)
        return empty


class _StandIn(types.ModuleType):
    """A module that has every name: an empty class."""

    __path__: MutableSequence[str] = []  # noqa: RUF012  # a package, where nothing is found

    def __getattr__(self, name: str) -> _EmptyClass:
        if name.startswith("__"):
            raise AttributeError(name)
        empty = _EmptyClass(name, (), {})
        setattr(self, name, empty)
        return empty


class _WheelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the real modules from a wheel, and a stand-in for all others under the roots."""

    def __init__(
        self,
        wheel: Path,
        *,
        roots: set[str],
        real: set[str],
        patches: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._wheel, self._real, self._patches = wheel, real, patches
        self._roots = roots - {*sys.modules}  # what is there already is better than a stand-in

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.partition(".")[0] not in self._roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name not in self._real)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None if spec.name in self._real else _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if name in self._real:
            with zipfile.ZipFile(self._wheel) as archive:
                source = archive.read(name.replace(".", "/") + ".py")
            exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102  # as it was shipped
        for attribute, value in self._patches.get(name, {}).items():
            setattr(module, attribute, value)


@contextmanager
def _serving(finder: _WheelFinder) -> Iterator[None]:
    """Import through the finder, and leave none of its modules for others to find."""
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in [*sys.modules.items()]:
            if getattr(getattr(module, "__spec__", None), "loader", None) is finder:
                del sys.modules[name]


class Vllm(NamedTuple):
    """The classes that manage vLLM's KV cache, and a way to make a request for them."""

    BlockPool: Any
    KVCacheManager: Any
    KVCacheConfig: Any
    KVCacheGroupSpec: Any
    FullAttentionSpec: Any
    SlidingWindowSpec: Any
    ChunkedLocalAttentionSpec: Any
    RSWASpec: Any
    dtype: Any
    request: Callable[[str, list[int], int], Any]  # id, token ids, block size


def vllm_from_wheel(wheel: Path) -> Vllm:
    """Load vLLM's KV-cache management from a wheel; a request has the fields that it reads."""
    core, interface = "vllm.v1.core.", "vllm.v1.kv_cache_interface"
    managers = core + "single_type_kv_cache_manager"
    status = enum.Enum("status", "WAITING RUNNING PREEMPTED")
    platform = types.SimpleNamespace(register_custom_kv_cache_specs=lambda _: None)
    finder = _WheelFinder(
        wheel,
        roots={"vllm", "torch", "msgspec"},
        real={
            core + "block_pool",
            core + "kv_cache_coordinator",
            core + "kv_cache_manager",
            core + "kv_cache_metrics",
            core + "kv_cache_utils",
            managers,
            interface,
            "vllm.utils.math_utils",
            "vllm.v1.kv_cache_spec_registry",
        },
        patches={
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.platforms": {"current_platform": platform},
            "vllm.v1.request": {"RequestStatus": status},
        },
    )

    def request(name: str, tokens: list[int], block_size: int) -> types.SimpleNamespace:
        ends = range(block_size, len(tokens) + 1, block_size)
        return types.SimpleNamespace(
            request_id=name,
            all_token_ids=tokens,
            num_tokens=len(tokens),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            num_preemptions=0,
            status=status.WAITING,
            shared_prefix_boundary=0,
            skip_reading_prefix_cache=False,
            block_hashes=[hashlib.sha256(repr(tokens[:end]).encode()).digest() for end in ends],
        )

    with _serving(finder):
        specs = importlib.import_module(interface)
        importlib.import_module(managers).register_all_kvcache_specs(None)
        return Vllm(
            BlockPool=importlib.import_module(core + "block_pool").BlockPool,
            KVCacheManager=importlib.import_module(core + "kv_cache_manager").KVCacheManager,
            KVCacheConfig=specs.KVCacheConfig,
            KVCacheGroupSpec=specs.KVCacheGroupSpec,
            FullAttentionSpec=specs.FullAttentionSpec,
            SlidingWindowSpec=specs.SlidingWindowSpec,
            ChunkedLocalAttentionSpec=specs.ChunkedLocalAttentionSpec,
            RSWASpec=specs.RSWASpec,
            dtype=None,
            request=request,
        )


def vllm_installed() -> Vllm:
    """Return the same of an installed vLLM, with its own requests."""
    core = "vllm.v1.core."
    specs = importlib.import_module("vllm.v1.kv_cache_interface")
    utils = importlib.import_module(core + "kv_cache_utils")
    hashing = importlib.import_module("vllm.utils.hashing").sha256
    sampling = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1)
    make = importlib.import_module("vllm.v1.request").Request
    utils.init_none_hash(hashing)

    def request(name: str, tokens: list[int], block_size: int) -> Any:  # noqa: ANN401  # vLLM's
        hasher = utils.get_request_block_hasher(block_size, hashing)
        return make(name, tokens, sampling, None, block_hasher=hasher)

    return Vllm(
        BlockPool=importlib.import_module(core + "block_pool").BlockPool,
        KVCacheManager=importlib.import_module(core + "kv_cache_manager").KVCacheManager,
        KVCacheConfig=specs.KVCacheConfig,
        KVCacheGroupSpec=specs.KVCacheGroupSpec,
        FullAttentionSpec=specs.FullAttentionSpec,
        SlidingWindowSpec=specs.SlidingWindowSpec,
        ChunkedLocalAttentionSpec=specs.ChunkedLocalAttentionSpec,
        RSWASpec=specs.RSWASpec,
        dtype=importlib.import_module("torch").float16,
        request=request,
    )


def sglang_from_wheel(wheel: Path) -> Any:  # noqa: ANN401  # a class of SGLang
    """Load SGLang's PagedTokenToKVPoolAllocator from a wheel; it runs on torch."""
    base = "sglang.srt.mem_cache.allocator."

    def num_new_pages(seq_lens: Any, page_size: int, prefix_lens: Any) -> int:  # noqa: ANN401
        return int((-(-seq_lens // page_size) + (-prefix_lens // page_size)).sum())

    finder = _WheelFinder(
        wheel,
        roots={"sglang"},
        real={base + "base", base + "paged"},
        patches={
            "sglang.srt.platforms": {
                "current_platform": types.SimpleNamespace(
                    capabilities=types.SimpleNamespace(supports_triton=False)
                )
            },
            "sglang.srt.utils": {
                "get_bool_env_var": lambda _: True,  # its own checks of double frees
                "is_hip": lambda: False,
                "get_num_new_pages": num_new_pages,
                "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
            },
        },
    )
    with _serving(finder):
        return importlib.import_module(base + "paged").PagedTokenToKVPoolAllocator

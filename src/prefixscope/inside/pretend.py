"""A CUDA platform on a machine without a GPU, for as long as nothing computes.

vLLM asks its platform which attention backend a layer gets, and that backend which block sizes it takes. The platform
is vLLM's own class for CUDA; only what a driver would say of the device is filled in, for one Hopper GPU, and the
compiled extensions that a CPU build lacks are empty modules. It must be called before vLLM is imported.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from typing import Any

DEVICE = "NVIDIA H200"
_CAPABILITY, _MEMORY_BYTES, _UNITS, _COUNT = (9, 0), 141 << 30, 132, 64
_EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm.third_party.deep_gemm",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
_OPERATORS = ("_C", "_C_cache_ops", "_C_stable_libtorch", "_moe_C", "_vllm_fa2_C", "_vllm_fa3_C")


def cuda() -> None:
    """From here on vLLM believes that it runs on CUDA."""
    os.environ["VLLM_TARGET_DEVICE"] = "cuda"
    for name in _EXTENSIONS:
        sys.modules[name] = _Empty(name)
    import torch
    import vllm.platforms as platforms
    from vllm.platforms import cuda as found
    from vllm.platforms.interface import DeviceCapability

    class Pretended(found.NonNvmlCudaPlatform):  # type: ignore[misc]
        device_type = "meta"  # where layers put what they allocate: nothing is

        @classmethod
        def current_device(cls) -> Any:
            return torch.device("meta")

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*_CAPABILITY)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return DEVICE

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return _MEMORY_BYTES

        @classmethod
        def device_count(cls) -> int:
            return _COUNT

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return _UNITS

        @classmethod
        def check_if_supports_dtype(cls, dtype: Any) -> None:
            return None

    platforms._current_platform = Pretended()
    # Looks which operators there are, and must see the truth.
    import vllm._custom_ops  # noqa: F401
    from vllm.triton_utils import triton

    triton.Config = _TritonConfig
    torch.cuda.Stream = torch.cuda.Event = _Idle
    for name in _OPERATORS:
        setattr(torch.ops, name, _Operators(getattr(torch.ops, name)))


class _Empty(types.ModuleType):
    """An extension that is there and holds nothing."""

    __file__ = "<none>"
    __path__: list[str] = []  # noqa: RUF012 (a module's own attribute)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)  # vLLM asks whether it is there by its spec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Operators:
    """A namespace of operators in which every one exists; those of the other build say no."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._real, name)
        except AttributeError:
            return _No()


class _No:
    def __call__(self, *_: object, **__: object) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Idle:
    """A CUDA stream or event that nothing is ever given to."""

    def __init__(self, *_: object, **__: object) -> None:
        return None


class _TritonConfig:
    """How a kernel would be launched; vLLM's stand-in for a missing Triton has none, and 0.32 chooses among some."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **_: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


def one_rank(tensor_parallel: int) -> None:
    """The first rank of that many, without a process group: layers only ask how many there are."""
    import torch
    import vllm.distributed.parallel_state as state

    class Group:
        def __init__(self, size: int) -> None:
            self.world_size, self.ranks = size, list(range(size))
            self.rank = self.rank_in_group = self.local_rank = self.first_rank = 0
            self.last_rank = size - 1
            self.is_first_rank, self.is_last_rank = True, size == 1
            self.device = torch.device("meta")
            self.unique_name = "pretended"
            self.device_group = self.cpu_group = self

        def size(self) -> int:
            return self.world_size

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    for name in ("_WORLD", "_TP", "_ETP", "_DCP", "_PP", "_DP", "_EP", "_EPLB", "_PCP"):
        if hasattr(state, name):
            setattr(state, name, Group(tensor_parallel if name in ("_WORLD", "_TP", "_ETP", "_EP") else 1))

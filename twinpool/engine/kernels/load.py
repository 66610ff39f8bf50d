"""Chooses the kernel that a worker computes with."""

from __future__ import annotations

import ctypes
import logging

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.native.load import load_native, native_refusal
from twinpool.engine.kernels.port import KernelSettings, StepKernel
from twinpool.errors import ModelSourceError
from twinpool.kv.storage import KvStorage

log = logging.getLogger(__name__)


def load_kernel(
    model: PreparedModel, storage: KvStorage, settings: KernelSettings, layers_computed: ctypes.c_int64
) -> StepKernel:
    """Read the weights: in float32 where the cache is, else as the settings say.

    layers_computed: raised after each layer of a step.
    Raises ModelSourceError where the weights are damaged, or what the settings ask for cannot be had here.
    """
    refusal = "torch is asked for" if settings.kernels == "torch" else native_refusal(model.description)
    if refusal is None:
        return load_native(model, storage, settings, layers_computed)
    wanted = _only_native(storage, settings)
    if wanted:
        raise ModelSourceError(f"{wanted} cannot be had: {refusal}")
    if settings.kernels == "auto":
        log.warning("computing with torch, several times slower than natively: %s", refusal)
    # Importing torch takes 1.5 s of processor time, which workers that compute natively save.
    from twinpool.engine.kernels.torch_cpu.load import load_torch  # noqa: PLC0415

    return load_torch(model, storage, settings, layers_computed)


def _only_native(storage: KvStorage, settings: KernelSettings) -> str:
    """What is asked for that torch cannot do; empty where it can."""
    if settings.kernels == "native":
        return "native kernels"
    if settings.weights not in ("auto", "bf16"):
        return f"weights in {settings.weights}"
    return "a cache in int8" if storage.layout.dtype == "int8" else ""

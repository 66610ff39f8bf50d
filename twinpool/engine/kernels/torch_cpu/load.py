"""Opens a torch kernel over a prepared model."""

from __future__ import annotations

import ctypes

import torch

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.kernels.torch_cpu.cache_tensor import TORCH_DTYPES
from twinpool.engine.kernels.torch_cpu.network import TorchKernel
from twinpool.engine.kernels.torch_cpu.weights import load_weights
from twinpool.kv.storage import KvStorage


def load_torch(
    model: PreparedModel, storage: KvStorage, settings: KernelSettings, layers_computed: ctypes.c_int64
) -> TorchKernel:
    """A kernel with weights in the cache's format; see load_kernel."""
    torch.set_num_threads(settings.threads if settings.cores is None else settings.cores.share)
    dtype = TORCH_DTYPES[storage.layout.dtype]
    weights = load_weights(model.weights_file, model.description, dtype, exact=settings.exact)
    return TorchKernel(model.description, weights, storage, layers_computed)

"""Chooses the kernel that a worker computes with."""

from __future__ import annotations

from collections.abc import Callable

import torch

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.port import StepKernel
from twinpool.engine.kernels.torch_cpu.network import TorchKernel
from twinpool.engine.kernels.torch_cpu.weights import load_weights
from twinpool.kv.storage import KvStorage


def set_threads(num_threads: int) -> None:
    """Set the compute threads of this process; call it before a kernel is loaded."""
    torch.set_num_threads(num_threads)


def load_kernel(
    model: PreparedModel, storage: KvStorage, *, exact: bool, computed_layer: Callable[[], None]
) -> StepKernel:
    """Read the weights in the storage's dtype.

    exact: a row's bits do not depend on the rows that it is computed with.
    computed_layer: called after each layer of a step, in the caller's thread.
    Raises ModelSourceError where the weights are damaged.
    """
    weights = load_weights(model.weights_file, model.description, storage.tensor.dtype, exact=exact)
    return TorchKernel(model.description, weights, storage, computed_layer)

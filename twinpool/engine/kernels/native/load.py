"""Finds or makes a model's image, and opens a native kernel over it."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.native.image import REVISION, Image, write_image
from twinpool.engine.kernels.native.kernel import NativeKernel
from twinpool.engine.kernels.native.layout import Weights
from twinpool.engine.kernels.native.library import native_library
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.models.description import ModelDescription
from twinpool.errors import ModelSourceError
from twinpool.kv.storage import KvStorage

log = logging.getLogger(__name__)
_NO_BUILD = "no native kernels are built for this processor"
_LANES = 8
"""Of the narrowest vectors: heads are whole vectors."""


def native_refusal(model: ModelDescription) -> str | None:
    """Why the model cannot be computed natively here; None where it can."""
    if native_library() is None:
        return _NO_BUILD
    head_dim = model.layers[0].attention.head_dim
    if head_dim % _LANES:
        return f"head_dim {head_dim} is not a multiple of {_LANES}"
    return None


def load_native(
    model: PreparedModel, storage: KvStorage, settings: KernelSettings, layers_computed: ctypes.c_int64
) -> NativeKernel:
    """A kernel of a model that native_refusal has nothing against; see load_kernel."""
    library = native_library()
    if library is None:
        raise ModelSourceError(_NO_BUILD)
    weights = cast("Weights", "float32" if storage.layout.dtype == "float32" else settings.weights)
    with _image_file(model, weights) as file:
        image = Image(file)
    return NativeKernel(
        library, model.description, image, storage, layers_computed, settings.threads, settings.cores
    )


def _image_file(model: PreparedModel, weights: Weights) -> BinaryIO:
    """An open image, made now if it is the first time."""
    path = model.folder / f"native-{REVISION}-{weights}-{model.digest[:12]}.image"
    try:
        return path.open("rb")
    except FileNotFoundError:
        log.info("laying out weights for native kernels, once: %s", path)
    try:
        file: BinaryIO = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # type: ignore[assignment] # noqa: SIM115 (a wrapper of one; closed by the caller)
    except OSError as error:
        log.warning("%s cannot be written: this worker has weights of its own (%s)", path, error)
        if sys.platform == "linux":
            file = open(os.memfd_create("twinpool-weights"), "w+b")  # noqa: SIM115, PTH123
        else:
            file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (closed by the caller)
        _write(file, model, weights)
        return file
    try:
        _write(file, model, weights)
        Path(file.name).chmod(0o644)
        # Whoever makes the same one makes the same bytes.
        Path(file.name).replace(path)
    except BaseException:
        file.close()
        Path(file.name).unlink(missing_ok=True)
        raise
    return file


def _write(file: BinaryIO, model: PreparedModel, weights: Weights) -> None:
    # These load torch, which only the first start needs.
    from twinpool.engine.kernels.native.packing import parts_of  # noqa: PLC0415
    from twinpool.engine.kernels.tensor_file import open_tensors  # noqa: PLC0415

    try:
        with open_tensors(model.weights_file, model.description) as tensors:
            write_image(file, parts_of(model.description, tensors, weights))
    except OSError as error:
        raise ModelSourceError(f"cannot lay out the weights of {model.name}: {error}") from error

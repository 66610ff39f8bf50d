"""The native library as ctypes sees it: csrc/twinpool_native.h, in the build that this processor runs."""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Self

from twinpool.engine.batch import SamplingRow

log = logging.getLogger(__name__)
_BUILDS = Path(__file__).parent / "builds"

FASTEST_FIRST = ("avx512vnni", "avx2", "neon-dotprod")
"""Builds that there may be, by their instruction sets; `native_build/compiler.py` makes them."""


class Matrix(Structure):
    """tp_matrix."""

    _fields_ = [
        ("format", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("reserved", c_int32),
        ("strips", c_void_p),
    ]


class Layer(Structure):
    """tp_layer."""

    _fields_ = [
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv_bias", c_void_p),
        ("frequencies", c_void_p),
        ("qkv", Matrix),
        ("attention_output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("inner_size", c_int32),
        ("norm_eps", c_float),
    ]


class Cores(Structure):
    """tp_cores."""

    _fields_ = [
        ("slots", c_void_p),
        ("num_slots", c_int32),
        ("own", c_int32),
        ("num_cpus", c_int32),
        ("share", c_int32),
    ]


class Model(Structure):
    """tp_model."""

    _fields_ = [
        ("vocab_size", c_int32),
        ("hidden_size", c_int32),
        ("num_layers", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("cache_format", c_int32),
        ("norm_eps", c_float),
        ("reserved", c_int32),
        ("final_norm", c_void_p),
        ("embedding", Matrix),
        ("output", Matrix),
        ("layers", POINTER(Layer)),
        ("cache", c_void_p),
        ("layers_computed", POINTER(c_int64)),
        ("cores", Cores),
    ]


class Draw(Structure):
    """tp_draw."""

    _fields_ = [
        ("seed", c_uint64),
        ("choice", c_uint64),
        ("position", c_uint64),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_int32),
        ("reserved", c_int32),
    ]

    @classmethod
    def of(cls, row: SamplingRow) -> Self:
        """A row's draw."""
        params = row.params
        return cls(
            seed=params.seed,
            choice=row.choice_index,
            position=row.position,
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
        )


class Library:
    """One build, loaded; calls let go of the GIL. variant: its instruction set."""

    def __init__(self, file: Path, variant: str) -> None:
        """Raises OSError where the file cannot be loaded here."""
        self.variant = variant
        library = ctypes.CDLL(str(file))
        self.usable = library.tp_usable
        self.open = library.tp_open
        self.open.argtypes, self.open.restype = [POINTER(Model), c_int], c_void_p
        self.threads = library.tp_threads
        self.threads.argtypes = [c_void_p]
        self.close = library.tp_close
        self.close.argtypes, self.close.restype = [c_void_p], None
        self.step = library.tp_step
        self.step.argtypes = [c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p, c_int, c_void_p, c_void_p]
        self.sample = library.tp_sample
        self.sample.argtypes = [c_void_p, c_int, c_int, c_void_p, POINTER(Draw), c_void_p]
        self.product = library.tp_product
        self.product.argtypes = [POINTER(Matrix), c_int, c_void_p, c_void_p, c_int]


def builds() -> dict[str, Path]:
    """The libraries that have been built, by instruction set, whether or not it is this processor's."""
    files = {name: _BUILDS / f"{name}.so" for name in FASTEST_FIRST}
    return {name: file for name, file in files.items() if file.is_file()}


@cache
def native_library() -> Library | None:
    """The fastest build that this processor runs; None where there is none."""
    for name, file in builds().items():
        try:
            library = Library(file, name)
        except OSError as error:
            log.warning("%s cannot be loaded: %s", file, error)
            continue
        if library.usable():
            return library
    return None

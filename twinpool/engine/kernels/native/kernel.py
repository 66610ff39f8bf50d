"""The native step kernel: arrays in, one call, logits out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from twinpool.engine.batch import SamplingRow
from twinpool.engine.kernels.cores import SharedCores
from twinpool.engine.kernels.native.image import REVISION, Image, Part
from twinpool.engine.kernels.native.layout import Format
from twinpool.engine.kernels.native.library import Cores, Draw, Layer, Library, Model
from twinpool.engine.kernels.port import KernelFacts, Segment, fresh_blocks
from twinpool.engine.models.description import Attention, ModelDescription
from twinpool.kv.storage import KvStorage

_CACHE_FORMATS = {"float32": Format.FLOAT32, "bfloat16": Format.BFLOAT16, "int8": Format.INT8}


class NativeKernel:
    """A StepKernel in native code, with threads of its own.

    A row's bits depend on its own token and cache alone, whatever it is computed with and in however many
    chunks: every sum has one order. layers_computed: raised after each layer of a step.
    most_threads: that it may compute with.
    """

    def __init__(
        self,
        library: Library,
        model: ModelDescription,
        image: Image,
        storage: KvStorage,
        layers_computed: ctypes.c_int64,
        num_threads: int,
        cores: SharedCores | None = None,
    ) -> None:
        """cores: where it sees how many of its threads others leave it.

        Raises MemoryError where a step's buffers cannot be had."""
        self._library = library
        self.most_threads = num_threads
        formats = "+".join(sorted(each.name.lower() for each in image.formats))
        self.facts = KernelFacts(f"native {library.variant}", formats, f"native {REVISION}")
        self._vocab_size = model.vocab_size
        self._frequencies: dict[Attention, NDArray[np.float32]] = {}
        self._model = self._described(model, image, storage)
        self._model.layers_computed = ctypes.pointer(layers_computed)
        if cores is not None:
            self._model.cores = Cores(cores.address, cores.num_slots, cores.own, cores.num_cpus, cores.share)
        self._storage = storage
        self._kept = (image, layers_computed, cores)  # the structures point to them
        self._engine = library.open(self._model, num_threads)
        if not self._engine:
            raise MemoryError("no memory for the buffers of a step")

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self._library.close(self._engine)

    @property
    def num_threads(self) -> int:
        """Threads that the newest layer was computed with."""
        return int(self._library.threads(self._engine))

    def step(
        self, token_ids: Sequence[int], segments: Sequence[Segment], logit_rows: Sequence[int]
    ) -> NDArray[np.float32]:
        """See StepKernel."""
        self._storage.clear_blocks(fresh_blocks(segments, self._storage.layout.block_size))
        tokens = np.array(token_ids, dtype=np.int32)
        shares = np.empty((len(segments), 3), dtype=np.int32)
        table = 0
        for index, segment in enumerate(segments):
            shares[index] = segment.num_new, segment.context_tokens, table
            table += len(segment.block_table)
        tables = np.fromiter(chain.from_iterable(each.block_table for each in segments), np.int32, table)
        wanted = np.array(logit_rows, dtype=np.int32)
        logits = np.empty((len(wanted), self._vocab_size), dtype=np.float32)
        failed = self._library.step(
            self._engine,
            len(tokens),
            tokens.ctypes.data,
            len(shares),
            shares.ctypes.data,
            tables.ctypes.data,
            len(wanted),
            wanted.ctypes.data,
            logits.ctypes.data,
        )
        if failed:
            raise MemoryError(f"no memory for a step of {len(tokens)} rows")
        return logits

    def draw(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[int]:
        """See StepKernel."""
        draws = (Draw * len(rows))(*map(Draw.of, rows))
        logits = np.ascontiguousarray(logits)
        tokens = np.empty(len(rows), dtype=np.int32)
        size = logits.shape[1]
        if self._library.sample(self._engine, len(rows), size, logits.ctypes.data, draws, tokens.ctypes.data):
            raise MemoryError(f"no memory to draw {len(rows)} tokens")
        if (tokens < 0).any():
            raise ValueError("no logit is a number")
        return [int(token) for token in tokens]

    def _described(self, model: ModelDescription, image: Image, storage: KvStorage) -> Model:
        layers = (Layer * model.num_layers)(
            *(self._layer(model, image, number) for number in range(model.num_layers))
        )
        embedding = image.matrix(Part.EMBEDDING)
        return Model(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            num_layers=model.num_layers,
            head_dim=storage.layout.head_dim,
            block_size=storage.layout.block_size,
            cache_format=_CACHE_FORMATS[storage.layout.dtype],
            norm_eps=model.norm_eps,
            final_norm=image.vector(Part.FINAL_NORM),
            embedding=embedding,
            output=embedding if model.tied_output else image.matrix(Part.OUTPUT),
            layers=layers,
            cache=storage.blocks.ctypes.data,
        )

    def _layer(self, model: ModelDescription, image: Image, number: int) -> Layer:
        layer = model.layers[number]
        attention = layer.attention
        if attention not in self._frequencies:
            exponents = np.arange(0, attention.head_dim, 2) / attention.head_dim
            self._frequencies[attention] = (attention.rope.theta**-exponents).astype(np.float32)
        return Layer(
            attention_norm=image.vector(Part.ATTENTION_NORM, number),
            mlp_norm=image.vector(Part.MLP_NORM, number),
            qkv_bias=image.vector(Part.QKV_BIAS, number) if attention.qkv_bias else None,
            frequencies=self._frequencies[attention].ctypes.data,
            qkv=image.matrix(Part.QKV, number),
            attention_output=image.matrix(Part.ATTENTION_OUTPUT, number),
            gate_up=image.matrix(Part.GATE_UP, number),
            down=image.matrix(Part.DOWN, number),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            inner_size=layer.mlp.inner_size,
            norm_eps=layer.norm_eps,
        )

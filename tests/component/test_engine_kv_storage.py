"""The cache, over its own memory and over a shared buffer."""

from __future__ import annotations

import mmap
import zlib

import numpy as np
import pytest

from twinpool.engine.kernels.torch_cpu.cache_tensor import cache_tensor
from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage, copy_blocks

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype="bfloat16")


def filled(num_blocks: int) -> KvStorage:
    storage = KvStorage(LAYOUT, num_blocks)
    storage.blocks[:] = np.random.default_rng(1).integers(0, 256, storage.blocks.shape)
    return storage


def test_a_block_is_one_run_of_bytes() -> None:
    storage = KvStorage(LAYOUT, 5)
    cache_tensor(storage)[3] = 1.0
    assert storage.blocks.shape == (5, LAYOUT.block_bytes)
    assert storage.blocks[3].view(np.uint16).tolist() == [0x3F80] * (LAYOUT.block_bytes // 2)
    assert not storage.blocks[[0, 1, 2, 4]].any()


def test_a_buffer_is_shared_and_left_as_it_is() -> None:
    with mmap.mmap(-1, 5 * LAYOUT.block_bytes) as buffer:
        buffer[LAYOUT.block_bytes] = 7
        writer, reader = KvStorage(LAYOUT, 5, buffer), KvStorage(LAYOUT, 5, buffer)
        assert int(reader.blocks[1, 0]) == 7
        writer.blocks[4] = 3
        assert bool((reader.blocks[4] == 3).all())
        del writer, reader


def test_a_short_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer"):
        KvStorage(LAYOUT, 5, bytearray(5 * LAYOUT.block_bytes - 1))
    with pytest.raises(ValueError, match="at least one block"):
        KvStorage(LAYOUT, 0)


def test_blocks_are_copied_whole() -> None:
    source, target = filled(5), KvStorage(LAYOUT, 6)
    copy_blocks(source, [4, 0], target, [1, 5])
    assert np.array_equal(target.blocks[[1, 5]], source.blocks[[4, 0]])
    assert not target.blocks[[0, 2, 3, 4]].any()


def test_copies_between_unlike_caches_are_refused() -> None:
    other = KvStorage(KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=8, dtype="bfloat16"), 2)
    with pytest.raises(ValueError, match="layouts differ"):
        copy_blocks(filled(2), [0], other, [0])
    with pytest.raises(ValueError, match=r"longer|shorter"):
        copy_blocks(filled(2), [0, 1], filled(2), [0])


def test_checksums_are_of_the_bytes() -> None:
    storage = filled(3)
    expected = zlib.crc32(bytes(storage.blocks[1].tolist()))
    assert storage.block_checksum(1) == expected
    storage.clear_blocks([1])
    assert storage.block_checksum(1) == zlib.crc32(bytes(LAYOUT.block_bytes)) != expected

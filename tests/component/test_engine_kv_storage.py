"""The cache tensor, over its own memory and over a shared buffer."""

from __future__ import annotations

import mmap
import zlib

import pytest
import torch

from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage, copy_blocks

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype="bfloat16")


def filled(num_blocks: int) -> KvStorage:
    storage = KvStorage(LAYOUT, num_blocks)
    storage.tensor.copy_(torch.randn(storage.tensor.shape))
    return storage


def test_layers_are_views_of_the_whole() -> None:
    storage = KvStorage(LAYOUT, 5)
    keys, values = storage.layer(1)
    assert keys.shape == values.shape == (5, 2, 4, 8)
    keys[3] = 1.0
    values[3] = 2.0
    assert bool((storage.tensor[3, 1, 0] == 1.0).all())
    assert bool((storage.tensor[3, 1, 1] == 2.0).all())
    assert int((storage.tensor != 0).sum()) == 2 * 2 * 4 * 8


def test_a_block_is_one_run_of_bytes() -> None:
    storage = filled(5)
    block = storage.tensor[2].contiguous().view(torch.uint8).view(-1)
    assert torch.equal(storage.block_bytes_view()[2], block)
    assert storage.block_bytes_view().shape == (5, LAYOUT.block_bytes)


def test_a_buffer_is_shared_and_left_as_it_is() -> None:
    with mmap.mmap(-1, 5 * LAYOUT.block_bytes) as buffer:
        buffer[LAYOUT.block_bytes] = 7
        writer, reader = KvStorage(LAYOUT, 5, buffer), KvStorage(LAYOUT, 5, buffer)
        assert int(reader.block_bytes_view()[1, 0]) == 7
        writer.tensor[4] = 3.0
        assert bool((reader.tensor[4] == 3.0).all())
        del writer, reader


def test_a_short_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer"):
        KvStorage(LAYOUT, 5, bytearray(5 * LAYOUT.block_bytes - 1))
    with pytest.raises(ValueError, match="at least one block"):
        KvStorage(LAYOUT, 0)


def test_blocks_are_copied_whole() -> None:
    source, target = filled(5), KvStorage(LAYOUT, 6)
    copy_blocks(source, [4, 0], target, [1, 5])
    assert torch.equal(target.tensor[[1, 5]], source.tensor[[4, 0]])
    assert not bool(target.tensor[[0, 2, 3, 4]].any())


def test_copies_between_unlike_caches_are_refused() -> None:
    other = KvStorage(KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=8, dtype="bfloat16"), 2)
    with pytest.raises(ValueError, match="layouts differ"):
        copy_blocks(filled(2), [0], other, [0])
    with pytest.raises(ValueError, match=r"longer|shorter"):
        copy_blocks(filled(2), [0, 1], filled(2), [0])


def test_checksums_are_of_the_bytes() -> None:
    storage = filled(3)
    expected = zlib.crc32(bytes(storage.block_bytes_view()[1].tolist()))
    assert storage.block_checksum(1) == expected
    storage.clear_blocks([1])
    assert storage.block_checksum(1) == zlib.crc32(bytes(LAYOUT.block_bytes)) != expected

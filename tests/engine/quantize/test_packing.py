"""Integers in words: every width and length, held against the packages that define the formats and against literals."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

from zellige.engine.quantize.packing import AWQ_PLACE, pack, unpack, unpack_awq, words
from zellige.kernels.int4_tiles import pack_int4

WIDTHS = (2, 3, 4, 8)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("count", [1, 7, 31, 32, 33, 96, 200])
def test_what_is_packed_comes_back_and_is_packed_as_compressed_tensors_does(bits: int, count: int) -> None:
    q = torch.randint(0, 1 << bits, (3, count), dtype=torch.uint8)
    packed = pack(q, bits)
    assert packed.shape == (3, words(count, bits))
    assert torch.equal(unpack(packed, bits, count), q)
    signed = (q.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)
    assert torch.equal(packed, pack_to_int32(signed, bits))
    assert torch.equal(unpack_from_int32(packed, bits, torch.Size((3, count))), signed)


def test_all_ones_fill_every_bit() -> None:
    for bits in WIDTHS:
        assert (pack(torch.full((1, 32), (1 << bits) - 1), bits) == -1).all()


def test_four_bits_are_packed_as_the_kernel_reads_them() -> None:
    q = torch.randint(0, 16, (5, 64), dtype=torch.uint8)
    assert torch.equal(pack(q, 4), pack_int4(q))


def test_awq_keeps_eight_values_in_the_order_of_its_kernels() -> None:
    # AutoAWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7 into bits 0, 4, …, 28.
    values = [3, 1, 4, 15, 9, 2, 6, 5]
    word = sum(values[column] << 4 * i for i, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
    word -= (word >> 31) << 32
    assert unpack_awq(torch.tensor([[word]], dtype=torch.int32)).tolist() == [values]
    assert sorted(AWQ_PLACE) == list(range(8))

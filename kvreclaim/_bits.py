"""Rows of tokens as packed bits, eight a byte, the first token highest: count, unite, cut.

`numpy.packbits` takes any byte but 0 for True, as numpy does; counting bytes would not.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ALL_SET: Final = 0xFF
_HALF_BYTE: Final = 4
_MANY_PARTS: Final = 8  # from here on einsum is the faster sum
_LEADING_ONES: Final = np.array([8 - (byte ^ _ALL_SET).bit_length() for byte in range(256)])
_FIRST_BITS: Final = np.array([0xFF00 >> bits & _ALL_SET for bits in range(8)], np.uint8)
_REVERSED: Final = np.packbits(
    np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8)[:, ::-1], axis=-1
)[:, 0]


def pack(keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the bits of a mask along its last axis, contiguous whatever the layout of the mask."""
    return np.ascontiguousarray(np.packbits(keep, axis=-1))


def unpack(bits: NDArray[np.uint8], tokens: int) -> NDArray[np.bool_]:
    """Return the mask of the first `tokens` bits along the last axis."""
    return np.unpackbits(bits, axis=-1, count=tokens).view(np.bool_)


def reverse(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits with each byte turned round: from little to big bit order, and back."""
    return _REVERSED[bits]


def union(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the union over the rows, the last axis but one."""
    return bits[..., 0, :] if bits.shape[-2] == 1 else np.bitwise_or.reduce(bits, axis=-2)


def per_block(bits: NDArray[np.uint8], num_slots: int, block_size: int) -> NDArray[Any]:
    """Return how many of the bits of each block are set; unwritten slots are not.

    Blocks of whole bytes are counted a machine word at a time, two blocks that share a byte a byte
    at a time, others bit by bit.
    """
    blocks = -(-num_slots // block_size)
    if blocks <= 1:
        return per_row(bits)[..., None][..., :blocks]
    if block_size % 8 == _HALF_BYTE:
        return _per_pair(bits, -(-blocks // 2), block_size)[..., :blocks]
    live: NDArray[Any]
    if block_size % 8 == 0:
        word = math.gcd(block_size // 8, 8)
        words = padded(bits, blocks * block_size // 8).view(f"u{word}")
        live = np.bitwise_count(words)
    else:
        live = np.unpackbits(bits, axis=-1, count=blocks * block_size)
    parts = live.shape[-1] // blocks
    if parts == 1:
        return live
    return _sums(live.reshape(*bits.shape[:-1], blocks, parts), block_size)


def _per_pair(bits: NDArray[np.uint8], pairs: int, block_size: int) -> NDArray[Any]:
    """Count pairs of blocks, of which one ends and one begins in the middle of a byte."""
    middle = block_size // 8
    size = 2 * middle + 1
    bits = padded(bits, pairs * size).reshape(*bits.shape[:-1], pairs, size)
    live = np.bitwise_count(bits)
    shared = bits[..., middle]
    first: NDArray[Any] = np.bitwise_count(shared >> _HALF_BYTE)
    second: NDArray[Any] = np.bitwise_count(shared & (1 << _HALF_BYTE) - 1)
    if middle:
        first = first + _sums(live[..., :middle], block_size)
        second = second + _sums(live[..., middle + 1 :], block_size)
    both = np.stack([first, second], axis=-1)
    return both.reshape(*bits.shape[:-2], 2 * pairs)


def _sums(parts: NDArray[Any], block_size: int) -> NDArray[Any]:
    """Add along the last axis: a few parts as arrays, many by einsum; `sum` is slower by far."""
    if block_size > np.iinfo(np.uint8).max:
        parts = parts.astype(np.uint16)
    if parts.shape[-1] < _MANY_PARTS:
        return functools.reduce(np.add, np.moveaxis(parts, -1, 0))
    return np.asarray(np.einsum("...i->...", parts))


def per_row(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many bits are set along the last axis."""
    words = padded(bits, -(-bits.shape[-1] // 8) * 8).view(np.uint64)
    return np.asarray(np.bitwise_count(words).sum(axis=-1, dtype=np.int64))


def leading_run(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many bits along the last axis are set before the first that is not."""
    if bits.shape[-1] == 0:
        return np.zeros(bits.shape[:-1], np.int64)
    broken = (bits != _ALL_SET).argmax(axis=-1)
    byte = np.take_along_axis(bits, broken[..., None], axis=-1)[..., 0]
    whole = np.where(byte == _ALL_SET, bits.shape[-1] - 1, broken)
    return np.asarray(whole * 8 + _LEADING_ONES[byte])


def first_bits(slots: NDArray[np.int64], num_bytes: int) -> NDArray[np.uint8]:
    """Return rows of bits whose first ``slots[i]`` are set, or all or none where out of range."""
    slots = np.clip(slots, 0, num_bytes * 8)
    whole = slots >> 3
    bits = np.negative((np.arange(num_bytes, dtype=np.int32) < whole[:, None]).view(np.uint8))
    cut = np.flatnonzero(whole < num_bytes)
    bits[cut, whole[cut]] = _FIRST_BITS[slots[cut] & 7]
    return bits


def padded(bits: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
    """Return the bits with dead ones appended, or themselves where the size fits already."""
    if bits.shape[-1] == num_bytes:
        return bits
    out = np.zeros((*bits.shape[:-1], num_bytes), np.uint8)
    out[..., : bits.shape[-1]] = bits
    return out

"""What chance gives, by going through every case: slow, literal, and without a line of the library.

Chances are Fractions. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from math import comb
from typing import NamedTuple


class Outcome(NamedTuple):
    """One choice of evicted tokens, with the chance that it comes about."""

    dead: tuple[bool, ...]
    chance: Fraction


def occupancies(dead: tuple[bool, ...], block_size: int, offset: int) -> list[int]:
    """Return the live tokens of each block, the slots before token 0 being empty."""
    live: dict[int, int] = {}
    for token, is_dead in enumerate(dead):
        block = (token + offset) // block_size
        live[block] = live.get(block, 0) + (not is_dead)
    return [live[block] for block in sorted(live)]


def num_free(dead: tuple[bool, ...], block_size: int, offset: int = 0) -> int:
    return occupancies(dead, block_size, offset).count(0)


def fewest_moves(dead: tuple[bool, ...], block_size: int, offset: int = 0) -> int:
    """Return the survivors of the blocks that must be emptied: the emptiest ones."""
    live = sorted(occupancies(dead, block_size, offset))
    still_held = -(-sum(live) // block_size)
    return sum(live[: len(live) - still_held])


def fixed(num_tokens: int, num_evicted: int) -> Iterator[Outcome]:
    """Every choice of so many tokens, each as likely."""
    chance = Fraction(1, comb(num_tokens, num_evicted))
    for dead in product([False, True], repeat=num_tokens):
        if sum(dead) == num_evicted:
            yield Outcome(dead, chance)


def independent(num_tokens: int, q: Fraction) -> Iterator[Outcome]:
    """Every mask, each token evicted by itself."""
    for dead in product([False, True], repeat=num_tokens):
        chance = Fraction(1)
        for is_dead in dead:
            chance *= q if is_dead else 1 - q
        yield Outcome(dead, chance)


def markov(num_tokens: int, q: Fraction, mean_dead_run: Fraction) -> Iterator[Outcome]:
    """Every mask, as a chain whose dead runs have this mean length and whose share of dead is q."""
    end_dead = 1 / mean_dead_run
    end_live = end_dead * q / (1 - q)  # as many runs begin as end
    for dead in product([False, True], repeat=num_tokens):
        chance = Fraction(1)
        for token, is_dead in enumerate(dead):
            if token == 0:
                dies = q
            elif dead[token - 1]:
                dies = 1 - end_dead
            else:
                dies = end_live
            chance *= dies if is_dead else 1 - dies
        yield Outcome(dead, chance)


def clusters(num_tokens: int, cluster: int, starts: Fraction) -> Iterator[Outcome]:
    """Every way in which clusters begin, at each place by themselves, also before token 0."""
    for begins in product([False, True], repeat=num_tokens + cluster - 1):
        chance = Fraction(1)
        for does in begins:
            chance *= starts if does else 1 - starts
        yield Outcome(
            tuple(not any(begins[token : token + cluster]) for token in range(num_tokens)), chance
        )


def pmf(
    outcomes: Iterator[Outcome], num_tokens: int, block_size: int, offset: int = 0
) -> list[Fraction]:
    """Return the chance of 0, 1, ... free blocks."""
    law = [Fraction(0)] * (len(occupancies((True,) * num_tokens, block_size, offset)) + 1)
    for dead, chance in outcomes:
        law[num_free(dead, block_size, offset)] += chance
    return law


def mean(law: list[Fraction]) -> Fraction:
    return sum((chance * count for count, chance in enumerate(law)), Fraction(0))


def variance(law: list[Fraction]) -> Fraction:
    middle = mean(law)
    return sum((chance * (count - middle) ** 2 for count, chance in enumerate(law)), Fraction(0))


@cache
def fixed_pmf(num_tokens: int, num_evicted: int, block_size: int, offset: int) -> list[Fraction]:
    return pmf(fixed(num_tokens, num_evicted), num_tokens, block_size, offset)


def fixed_moves(num_tokens: int, num_evicted: int, block_size: int, offset: int) -> Fraction:
    return sum(
        (
            chance * fewest_moves(dead, block_size, offset)
            for dead, chance in fixed(num_tokens, num_evicted)
        ),
        Fraction(0),
    )


def fixed_pmf_counted(num_tokens: int, num_evicted: int, block_size: int) -> list[float]:
    """Return the chances for long sequences of whole blocks: inclusion, exclusion, big integers."""
    blocks = num_tokens // block_size
    ways = [
        comb(blocks, some) * comb(num_tokens - some * block_size, num_tokens - num_evicted)
        for some in range(num_evicted // block_size + 1)
    ]
    law = []
    for free in range(blocks + 1):
        exactly = sum(
            (-1) ** (some - free) * comb(some, free) * ways[some] for some in range(free, len(ways))
        )
        law.append(exactly / comb(num_tokens, num_evicted))
    return law


def moves_per_evicted_token(q: Fraction, block_size: int) -> Fraction:
    """Return the mean live tokens of the emptiest blocks, a share q of all, per evicted token."""
    left, moves = q, Fraction(0)
    for live in range(block_size + 1):
        share = comb(block_size, live) * (1 - q) ** live * q ** (block_size - live)
        taken = min(share, left)
        left -= taken
        moves += taken * live
    return moves / (q * block_size)


def runs(keep: list[bool]) -> list[int]:
    """Return the length of every run of evicted tokens of one row."""
    found, length = [], 0
    for kept in [*keep, True]:
        if kept and length:
            found.append(length)
        length = 0 if kept else length + 1
    return found

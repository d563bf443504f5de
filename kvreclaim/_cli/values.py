"""What the values of options are: their text read, or refused in a line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import runtimes
from kvreclaim._comparison_tables import FIGURES

ALL: Final = "all"  # every runtime, one after another

_MORE_IS_BETTER: Final = (
    "logical_saving",
    "physical_reclaim",
    "compacted_reclaim",
    "packed_reclaim",
    "admission_count",
    "reclaim_efficiency",
    "slots_per_move",
    "capacity_gain",
    "reclaimed",
    "reclaimed_bytes",
)


def file(text: str) -> str:
    """Return a name that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file; got ''; write such as figures.csv")
    return text


def positive(text: str) -> int:
    """Return a number from 1 up."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 up; got {text!r}; write one")
    return number


def numbers(text: str) -> NDArray[np.int64] | int:
    """Return a number, or an array of them: rows of numbers if a file has lines of several."""
    try:
        source = Path(text[1:]).read_text("utf-8-sig") if text.startswith("@") else text
        lines = [line.replace(",", " ").split() for line in source.splitlines()]
        array = np.array([[int(number) for number in line] for line in lines if line], np.int64)
        first = int(array.flat[0])
    except (IndexError, OverflowError, ValueError):
        raise argparse.ArgumentTypeError(
            f"must be whole numbers; got {text!r}; write such as 9,7,9, or @FILE with as many on "
            "each line"
        ) from None
    return first if array.size == 1 else array.squeeze()


def runtime(text: str) -> tuple[str, dict[str, Any]]:
    """Return a preset's name and its keywords."""
    name, _, rest = text.partition(":")
    if name not in (*runtimes.names(), ALL):
        raise argparse.ArgumentTypeError(
            f"NAME must be {ALL} or one of {', '.join(runtimes.names())}; got {name!r}; write "
            "such as sglang:page_size=64"
        )
    keywords: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise argparse.ArgumentTypeError(
                f"KEY=VALUE must name a keyword of {name}; got {part!r}; write such as "
                "tensorrt_llm:mode=per_head"
            )
        if key in keywords:
            raise argparse.ArgumentTypeError(
                f"KEY=VALUE must name each keyword once; got {key!r} twice; write one of the two"
            )
        keywords[key] = int(value) if value.lstrip("-").isdecimal() else value
    return name, keywords


def threshold(text: str) -> tuple[str, float]:
    """Return the name of a figure and the least that it may be."""
    name, _, number = text.partition("=")
    if name not in FIGURES:
        raise argparse.ArgumentTypeError(
            f"METRIC must be one of {', '.join(_MORE_IS_BETTER)}; got {name!r}; write such as "
            "physical_reclaim=0.3"
        )
    if name not in _MORE_IS_BETTER:
        raise argparse.ArgumentTypeError(
            f"METRIC must be a figure of which more is better; got {name!r}; write one of "
            f"{', '.join(_MORE_IS_BETTER)}"
        )
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(
            f"VALUE must be a finite number; got {number!r}; write such as {name}=0.3"
        )
    return name, value

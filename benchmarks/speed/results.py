"""What a section of the run found, and its numbers as text."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from benchmarks.pages import Table


@attrs.frozen(kw_only=True)
class Section:
    """Tables, and the figures that targets are held against, by the target's key."""

    tables: tuple[Table, ...]
    reached: Mapping[str, float] = attrs.field(factory=dict)


def number(value: float) -> str:
    """Return a ratio with three digits: two of them behind the point below 10, none from 100 on.

    Examples
    --------
    >>> number(0.12345), number(9.96), number(31.25), number(123.4)
    ('0.12', '9.96', '31.2', '123')
    """
    digits = sum(value < limit for limit in (9.995, 99.95))  # what rounds to 10, and to 100
    return f"{value:,.{digits}f}"


def cells(values: Sequence[float | None]) -> tuple[str, ...]:
    """Return numbers as cells, empty where there is none."""
    return tuple("" if value is None else number(value) for value in values)


def machine() -> str:
    """Return the kind of machine and the versions, which is all that ratios depend on.

    It holds neither a name nor a path.
    """
    python = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}"
    version = ".".join(np.__version__.split(".")[:2])
    kind = platform.machine().replace("_", "-")
    return f"{kind}, {os.cpu_count()} cores, {python}, numpy {version}"

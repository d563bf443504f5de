"""How fast is fast enough: targets as data. Whether one is met is computed, never written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from benchmarks.pages import Table
from benchmarks.speed.results import number


@attrs.frozen
class Target:
    """A figure, and the range in which it is good enough."""

    key: str  # what sections call the figure
    text: str
    low: float | None = attrs.field(default=None, kw_only=True)
    high: float | None = attrs.field(default=None, kw_only=True)
    unit: str = attrs.field(default="x", kw_only=True)

    def is_met(self, value: float) -> bool:
        """Return whether a figure lies in the range; its borders belong to it."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def cells(self, value: float | None) -> tuple[str, str, str, str]:
        """Return the target in words, what was reached, and whether that is enough."""
        unit = f" {self.unit}" if self.unit else ""
        if self.low is not None and self.high is not None:
            bounds = f"{self.low:g} to {self.high:g}{unit}"
        elif self.low is not None:
            bounds = f"at least {self.low:g}{unit}"
        else:
            bounds = f"at most {self.high:g}{unit}"
        if value is None:
            return (self.text, bounds, "", "not measured")
        digits = number(value) if self.unit else f"{value:.3f}"
        return (self.text, bounds, digits + unit, "yes" if self.is_met(value) else "**no**")


TARGETS: Final = (
    Target("figures", "32 MiB, B = 16: naive line / census and seven figures", low=7),
    Target("c 16", "census / C loop, B = 16", high=3.5),
    Target("c words", "census / C loop, B = 32, 64, 128, 256, 1,024: the worst", high=3),
    Target("c rest", "census / C loop, B = 8, 12, 24, 100: the worst", high=6),
    Target("packed 16", "boolean mask / packed bits, B = 16", low=1.5),
    Target("packed 64", "boolean mask / packed bits, B = 64", low=2.5),
    Target("packed 1024", "boolean mask / packed bits, B = 1,024", low=3),
    Target("union", "one table of 32 x 8 rows: OR of words / whole census", low=60, unit="%"),
    Target("small census", "4,096 tokens: `take_census` / naive line", high=2),
    Target("small six", "4,096 tokens: six metrics of a census / naive line", high=1),
    Target("small add", "4,096 tokens: `Census + Census` / naive line", high=1),
    Target("small report", "4,096 tokens: `report` of a mask / naive line", high=16),
    Target("stack", "256 calls / one call of 256 rows", low=8),
    Target("import", "`import kvreclaim` / `import numpy, attrs`", high=1.2),
    Target("import names", "`from kvreclaim import take_census, report` / the same", high=1.2),
    Target("exponent", "time ~ tokens ** exponent, rows of 131,072", low=0.95, high=1.05, unit=""),
    Target("exponent of one", "the same, one row of all tokens", low=0.95, high=1.05, unit=""),
    Target("metrics", "4 MiB: census and six metrics / census", high=1.05),
    Target("memory", "peak of extra memory, any pool and size", high=4, unit="MiB"),
    Target("parts of long", "256 tables: costliest rule / histogram alone", high=2),
    Target("parts of short", "8,192 tables: costliest rule / histogram alone", high=2),
)


def judged(reached: Mapping[str, float]) -> Table:
    """Return the table of targets: what was reached, and whether it is met."""
    return Table(
        title="Targets",
        text="Whole calls, checks of the arguments included; B is the block size.",
        header=("what", "target", "reached", "met"),
        rows=tuple(target.cells(reached.get(target.key)) for target in TARGETS),
    )

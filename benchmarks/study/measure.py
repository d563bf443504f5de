"""From replications to a row: mean, spread, interval, and what became of the article's figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final

import attrs
import numpy as np

from benchmarks.study.results import Chart, Line, Row
from kvreclaim import Summary, summarize, summarize_ratio

REPLICATIONS: Final = 30
LIMIT: Final = "limit of long sequences"  # how the law of a row begins that is no expectation
SEEN: Final = 5  # numbers above 0 from which they have an interval
UNKNOWN: Final = "the article's generator is not public"


@attrs.frozen(kw_only=True)
class Section:
    """What one section of the study found."""

    title: str
    text: str
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]


def generators(replications: int) -> list[np.random.Generator]:
    """Return the sources of randomness of a section: seeds 0, 1, 2, ..., none chosen."""
    return [np.random.default_rng(seed) for seed in range(replications)]


def exact(value: float, **said: Any) -> Row:  # noqa: ANN401  # fields of a Row
    """Return the row of a figure that has no randomness."""
    return Row(
        mean=value, sd=0.0, low=value, high=value, n=1, interval="exact", **judged(said, value)
    )


def of_values(
    values: Sequence[float],
    *,
    bounds: tuple[float, float] | None = None,
    **said: Any,  # noqa: ANN401
) -> Row:
    """Return the row of one number a replication."""
    return _of_summary(summarize(values, bounds=bounds), said)


def of_ratio(
    numerators: Sequence[int],
    denominators: Sequence[int],
    **said: Any,  # noqa: ANN401
) -> Row:
    """Return the row of a ratio of sums, such as freed blocks over blocks, a pair a replication."""
    return _of_summary(summarize_ratio(numerators, denominators), said)


def _of_summary(found: Summary, said: dict[str, Any]) -> Row:
    error = found.sd / math.sqrt(found.num_samples) if found.num_samples > 1 else math.nan
    return Row(
        mean=found.mean,
        sd=found.sd,
        low=found.low,
        high=found.high,
        n=found.num_samples,
        interval=found.method,
        **judged(said, found.mean, error, (found.low, found.high), sd=found.sd),
    )


def of_rare(
    values: Sequence[float],
    *,
    bounds: tuple[float, float],
    **said: Any,  # noqa: ANN401
) -> Row:
    """Return the row of one number a replication, without an interval where few are above 0.

    Less than `SEEN` numbers above 0 say too little of how large they are.
    """
    if sum(value > 0 for value in values) >= min(SEEN, len(values)):
        return of_values(values, bounds=bounds, **said)
    row = of_values(values, **said)
    return attrs.evolve(row, low=math.nan, high=math.nan, interval="none, too few above 0")


def largest(values: Sequence[float], **said: Any) -> Row:  # noqa: ANN401  # fields of a Row
    """Return the row of the largest of one number a replication: no mean, so no interval."""
    return Row(
        mean=max(values),
        sd=math.nan,
        low=math.nan,
        high=math.nan,
        n=len(values),
        interval="none, the largest of all",
        **judged(said, max(values), math.nan),
    )


def judged(
    said: dict[str, Any],
    mean: float,
    error: float = 0.0,
    ends: tuple[float, float] | None = None,
    *,
    sd: float = math.nan,
) -> dict[str, Any]:
    """Return the fields with a verdict: the one given, or how the article's figure fares.

    ``article`` is the figure as printed, such as ``0.47 ± 0.02``, whose spread is held against the
    `sd`; a ``note`` is added.
    """
    fields = dict(said)
    note = fields.pop("note", "")
    if "verdict" not in fields:
        fields["verdict"] = _verdict(fields, mean, error, ends)
    if "±" in fields.get("article", "") and not math.isnan(sd):
        fields["verdict"] += f"; {_spread(fields['article'].split('±')[1].strip(), sd)}"
    if note:
        fields["verdict"] += f"; {note}"
    return fields


def _spread(printed: str, sd: float) -> str:
    """Return how our spread over seeds fares against the one that the article prints."""
    digits = len(printed.partition(".")[2])
    how = "rounds" if f"{sd:.{digits}f}" == printed else "does not round"
    return f"our ± {sd:.{digits + 1}f} {how} to its {printed}"


def _verdict(
    fields: dict[str, Any], mean: float, error: float, ends: tuple[float, float] | None
) -> str:
    article, closed = fields.get("article", ""), fields.get("closed_form")
    parts = []
    if article:
        printed = article.split("±")[0].strip().rstrip("%")
        scale = Fraction(1, 100) if "%" in article else Fraction(1)
        digits = len(printed.partition(".")[2])
        step = scale / 10**digits
        value = Fraction(printed.replace(",", "")) * scale
        if abs(Fraction(mean) - value) <= step / 2:
            parts.append(f"reached: ours rounds to {printed}{'%' * (scale < 1)}")
        elif error > 0:
            # The article's mean is one of as many replications, so it has an error of its own.
            away = (abs(Fraction(mean) - value) - step / 2) / Fraction(error * math.sqrt(2))
            near = "agrees" if away <= 4 else "differs"  # noqa: PLR2004  # standard errors
            parts.append(f"{near}: {float(away):.1f} standard errors of a difference away")
        else:
            parts.append("differs")
    if closed is not None and fields.get("law", "").startswith(LIMIT):
        side = "above" if mean > closed else "below"
        parts.append(f"{LIMIT}: ours is {abs(mean - closed):.2g} {side} it")
    elif closed is not None and error > 0:
        away = abs(mean - closed) / error
        parts.append(f"closed form {away:.1f} standard errors away")
    elif closed is not None and ends is not None:
        # All replications gave the same, which is no standard error of 0.
        if not math.isnan(ends[0]):
            inside = "inside" if ends[0] <= closed <= ends[1] else "outside"
            parts.append(f"closed form {inside} the 95 % interval")
    elif closed is not None:
        parts.append("is the closed form" if mean == closed else "differs from the closed form")
    return "; ".join(parts) or "beyond the article"


def each(work: Callable[[np.random.Generator], Any], replications: int) -> list[Any]:
    """Return what the work gives for each replication."""
    return [work(rng) for rng in generators(replications)]


def line(name: str, rows: Iterable[Row], *, dashed: bool = False) -> Line:
    """Return a series of a chart that draws these rows in order."""
    return Line(name=name, keys=tuple(row.key for row in rows), dashed=dashed)


def of_blocks(
    freed: Sequence[int],
    blocks: int,
    *,
    promised: bool = False,
    **said: Any,  # noqa: ANN401
) -> Row:
    """Return the row of blocks freed of so many; exact where the policy promises their number."""
    if promised:
        return exact(same(freed) / blocks, **said)
    return of_ratio(freed, [blocks] * len(freed), **said)


def of_requests(
    counts: Sequence[int],
    freed: Sequence[int],
    *,
    blocks: int,
    need: int,
    setting: str,
    promised: bool = False,
    **said: Any,  # noqa: ANN401
) -> Row:
    """Return the row of requests admitted, an integer a replication, into the blocks freed.

    Where all counts are alike, their spread says nothing, and that of the blocks does: f blocks
    admit at least ``(f - need + 1) / need`` and at most ``f / need``.
    """
    about = {"metric": "requests admitted", **said}
    if promised:
        return exact(float(same(counts)), setting=setting, **about)
    setting += f"; least {min(counts)}, most {max(counts)}"
    if len(set(counts)) > 1:
        return of_values(counts, bounds=(0, blocks / need), setting=setting, **about)
    found = summarize_ratio(freed, [blocks] * len(freed))
    ends = max(0.0, (blocks * found.low - need + 1) / need), blocks * found.high / need
    return Row(
        mean=float(counts[0]),
        sd=0.0,
        low=ends[0],
        high=ends[1],
        n=len(counts),
        interval=f"{found.method}, of blocks",
        setting=setting,
        **judged(about, float(counts[0]), 0.0, ends),
    )


def same(values: Iterable[int]) -> int:
    """Return the number that every replication gave, where a policy or a law promises one."""
    (value,) = set(values)
    return value

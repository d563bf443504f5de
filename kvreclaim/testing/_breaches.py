"""Which laws a policy breaks, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvreclaim._render.tables import printable
from kvreclaim.pool import BlockPool
from kvreclaim.testing._cases import Asked, Case, Policy, RaisedError
from kvreclaim.testing._laws import FIRST, LAWS, Finding
from kvreclaim.testing._pictures import LEGEND, blocks_of_rows

_SHORT: Final = 12  # scores that a message shows
_LONGEST: Final = 400  # characters of what a library says of an error


class Breach(NamedTuple):
    """A law that a case breaks."""

    law: str
    case: Case
    finding: Finding
    error: BaseException | None


def find_breaches(asked: Asked, laws: Sequence[str]) -> list[Breach]:
    """Return the smallest case that breaks each law; none beyond what is no mask."""
    breaches: list[Breach] = []
    for name in laws:
        if any(breach.law in FIRST for breach in breaches):
            break
        breach = _first_breach(asked, name)
        if breach:
            breaches.append(breach)
    return breaches


def _first_breach(asked: Asked, name: str) -> Breach | None:
    law = LAWS[name]
    for case in law.cases(asked):
        try:
            finding, error = law.finds(asked, case), None
        except Exception as raised:  # noqa: BLE001  # of the policy, or of what it returned
            finding, error = finding_of(raised)
        if finding:
            return Breach(name, case, finding, error)
    return None


def finding_of(raised: Exception) -> tuple[Finding, BaseException | None]:
    """Return what is said of an exception, and what the policy itself raised, if it did."""
    error = raised.__cause__ if isinstance(raised, RaisedError) else None
    try:
        said = printable(str(raised if error is None else error))
    except Exception:  # noqa: BLE001  # an error of a policy's own may fail at this too
        said = "without a text"
    who = "" if error is None else f"the policy raised {type(error).__name__}: "
    return Finding(f"{who}{said:.{_LONGEST}}"), error


def text_of(asked: Asked, laws: Sequence[str], breaches: Sequence[Breach], pool: BlockPool) -> str:
    """Return the whole message: each broken law, and a map of the first that has one."""
    broken = [breach.law for breach in breaches]
    error = breaches[0].error if breaches[0].law in FIRST else None
    also = "" if error is None else f"raised {type(error).__name__}, and so "
    names = ", ".join(broken)
    head = f"{name_of(asked.policy)} {also}breaks {len(broken)} of {len(laws)} laws: {names}"
    mapped = next((breach for breach in breaches if breach.finding.masks), None)
    return "\n\n".join(
        [
            head,
            *(
                _paragraph(asked, breach)
                + (map_of(asked, breach.finding, pool) if breach is mapped else "")
                for breach in breaches
            ),
        ]
    )


def _paragraph(asked: Asked, breach: Breach) -> str:
    case = breach.case
    lines = [
        f"{breach.law}: {LAWS[breach.law].says}",
        f"  {breach.finding.what}",
        (
            f"  smallest input found: axes={asked.axes!r}, shape {case.shape}, "
            f"num_kept={case.num_kept}, seed {case.seed}"
        ),
        f"  importance = {case.code()}",
    ]
    scores = case.importance()
    return "\n".join([*lines, *([f"  = {scores.tolist()}"] if scores.size <= _SHORT else [])])


def map_of(asked: Asked, finding: Finding, pool: BlockPool) -> str:
    """Return the masks of a finding in blocks of the pool, on lines of their own; or nothing."""
    if not finding.masks:
        return ""
    axes = asked.axes.replace("t", "") + "t"
    parts = [f"{title}:\n{blocks_of_rows(keep, axes, pool)}" for title, keep in finding.masks]
    return "\n".join(["", f"in blocks of {pool.block_size}:", LEGEND, *parts])


def name_of(policy: Policy) -> str:
    return printable(str(getattr(policy, "__name__", type(policy).__name__)))

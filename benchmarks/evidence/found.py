"""What a folder of data holds: the rows of its three tables, and the masks of one half."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.evidence import masks, matched
from benchmarks.evidence.settings import POLICIES
from benchmarks.evidence.shape import Lie, lie_of
from benchmarks.evidence.tables import (
    AdmissionRow,
    Context,
    QualityRow,
    ReclaimRow,
    from_csv,
)

HALF: Final = 0.5  # the retained ratio at which policies are put side by side
_TABLES: Final = ("quality.csv", "reclaim.csv", "admission.csv")


class Evidence(NamedTuple):
    """The rows of the three tables, and what they and the masks say of each (model, policy).

    Attributes
    ----------
    points
        Figures, context by context and ratio by ratio.
    halves
        Rows of one half retained, by model, policy, kind of tables and block size.
    lies
        How evicted tokens lie, context by context, one half retained.
    """

    quality: list[QualityRow]
    admission: list[AdmissionRow]
    points: dict[tuple[str, str], matched.Points]
    halves: dict[tuple[str, str, str, int], list[ReclaimRow]]
    lies: dict[tuple[str, str], dict[Context, Lie]]

    @property
    def models(self) -> tuple[str, ...]:
        """The models, the one of most contexts first."""
        contexts = {context for points in self.points.values() for context in points}
        names = [context.model for context in contexts]
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))

    def policies(self, model: str) -> tuple[str, ...]:
        """Return the policies that were measured on a model, in their order."""
        return tuple(policy for policy in POLICIES if (model, policy) in self.points)

    def contexts(self, model: str) -> tuple[Context, ...]:
        """Return the contexts of a model."""
        found = {context for points in self.points.values() for context in points}
        return tuple(sorted(context for context in found if context.model == model))

    def names(self, model: str, policy: str) -> tuple[str, ...]:
        """Return the names of the figures of a policy."""
        return tuple(next(iter(self.points[model, policy].values()))[matched.WHOLE])

    def at(self, model: str, policy: str, ratio: float, name: str) -> dict[Context, float]:
        """Return a figure of a policy on each context."""
        points = self.points[model, policy]
        return {context: some[ratio][name] for context, some in points.items() if ratio in some}


def read(folder: Path) -> Evidence:
    """Return what a folder holds.

    Raises
    ------
    FileNotFoundError
        Where one of its tables is missing.
    ValueError
        For a table that is not as it should be.
    """
    texts = {name: (folder / name).read_text("utf-8") for name in _TABLES}
    quality = from_csv(QualityRow, texts["quality.csv"], name="quality.csv")
    reclaim = from_csv(ReclaimRow, texts["reclaim.csv"], name="reclaim.csv")
    return Evidence(
        quality=quality,
        admission=from_csv(AdmissionRow, texts["admission.csv"], name="admission.csv"),
        points=matched.points_of(quality, reclaim),
        halves=_halves(reclaim),
        lies=_lies(folder / "masks"),
    )


def _halves(rows: list[ReclaimRow]) -> dict[tuple[str, str, str, int], list[ReclaimRow]]:
    found: defaultdict[tuple[str, str, str, int], list[ReclaimRow]] = defaultdict(list)
    for row in rows:
        if row.ratio == HALF:
            found[row.model, row.policy, row.tables, row.block_size].append(row)
    return dict(found)


def _lies(folder: Path) -> dict[tuple[str, str], dict[Context, Lie]]:
    found: defaultdict[tuple[str, str], dict[Context, Lie]] = defaultdict(dict)
    for path in sorted(folder.glob("*.npz")):
        context = Context.of_stem(path.stem)
        for (policy, ratio), keep in masks.load(path).items():
            if ratio == HALF:
                found[context.model, policy][context] = lie_of(policy, keep)
    return dict(found)


def digest(folder: Path) -> str:
    """Return the sha256 of all that tables and figures are made of, names and bytes."""
    whole = hashlib.sha256()
    for path in [*(folder / name for name in _TABLES), *sorted((folder / "masks").glob("*.npz"))]:
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def by_document(values: Mapping[Context, float]) -> dict[str, float]:
    """Return the mean over the contexts of each document; what is nan is left out.

    Examples
    --------
    >>> by_document({Context("m", "d", 512): 1.0, Context("m", "d", 1024): 2.0})
    {'d': 1.5}
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for context, value in values.items():
        if not math.isnan(value):
            found[context.document].append(value)
    return {document: math.fsum(some) / len(some) for document, some in found.items()}


def over_documents(values: Mapping[Context, float]) -> float:
    """Return the mean over documents of what `by_document` returns; nan without any."""
    some = by_document(values).values()
    return math.fsum(some) / len(some) if some else math.nan

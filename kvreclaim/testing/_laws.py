"""The laws of an eviction policy: each finds what is wrong with one case, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim.testing._cases import Asked, Case, Scores, alternating, edges, ordinary
from kvreclaim.testing._pictures import index_name

_PADDING: Final = 2  # tokens beside the longest sequence


class Finding(NamedTuple):
    """What is wrong with a case, and the masks that show it, tokens last."""

    what: str
    masks: tuple[tuple[str, NDArray[np.bool_]], ...] = ()


class Law(NamedTuple):
    """What must hold of every case, where it is asked at all."""

    says: str
    finds: Callable[[Asked, Case], Finding | None]
    cases: Callable[[Asked], Iterator[Case]] = ordinary
    is_asked: Callable[[Asked], bool] = lambda _: True


def _shape(asked: Asked, case: Case) -> Finding | None:
    got = _returned(asked, case).shape
    return None if got == case.shape else Finding(f"returned an array of shape {got}")


def _dtype(asked: Asked, case: Case) -> Finding | None:
    got = _returned(asked, case).dtype
    return None if got == np.bool_ else Finding(f"returned an array of {got}")


def _returned(asked: Asked, case: Case) -> NDArray[np.generic]:
    returned = asked.raw(case.importance(), case.num_kept, case.seed)
    return _checks.as_array("what the policy returns", returned, "a keep-mask")


def budget_finding(asked: Asked, keep: NDArray[np.bool_], num_kept: int) -> Finding | None:
    """Return the first row, or group of rows with one budget, of which more or fewer stay."""
    letters = asked.axes.replace("t", "")
    together = tuple(at for at, letter in enumerate(letters) if letter in asked.mean_over)
    counts = keep.sum(axis=-1).sum(axis=together)
    rows = math.prod(keep.shape[at] for at in together)
    limit = min(num_kept, keep.shape[-1])
    wrong = counts != rows * limit
    if not wrong.any():
        return None
    index = _checks.first_of(wrong)
    name = index_name("".join(c for c in letters if c not in asked.mean_over), index)
    asked_for = f"{limit}" if rows == 1 else f"{rows} x {limit}"
    of = f" of {name}" if name else ""
    return Finding(f"kept {counts[index]} instead of {asked_for} tokens{of}", (("kept", keep),))


def _budget(asked: Asked, case: Case) -> Finding | None:
    return budget_finding(asked, asked.of(case), case.num_kept)


def _sinks(asked: Asked, case: Case) -> Finding | None:
    keep = asked.of(case)
    return _evicts(keep, keep[..., : asked.sinks], 0)


def _window(asked: Asked, case: Case) -> Finding | None:
    keep = asked.of(case)
    start = keep.shape[-1] - asked.window
    return _evicts(keep, keep[..., start:], start)


def _evicts(keep: NDArray[np.bool_], part: NDArray[np.bool_], start: int) -> Finding | None:
    if part.all():
        return None
    token = start + _checks.first_of(~part)[-1]
    return Finding(f"evicted token {token} of {keep.shape[-1]}", (("kept", keep),))


def _deterministic(asked: Asked, case: Case) -> Finding | None:
    first, again = asked.of(case), asked.of(case)
    if (first == again).all():
        return None
    return Finding(
        f"kept other tokens when it was called again: {_num_other(first, again)} differ",
        (("kept", first), ("kept when called again", again)),
    )


def _input_unchanged(asked: Asked, case: Case) -> Finding | None:
    scores = case.importance()
    asked.raw(scores, case.num_kept, case.seed)
    untouched = case.importance()
    if scores.shape != case.shape or scores.dtype != untouched.dtype:
        return Finding(f"made an array of {scores.dtype} of shape {scores.shape} of the importance")
    wrong = scores.view(np.int64) != untouched.view(np.int64)  # bits: -0.0 is another value than 0
    if not wrong.any():
        return None
    index = _checks.first_of(wrong)
    was, now = float(untouched[index]), float(scores[index])
    return Finding(
        f"wrote {now} over importance {was} at index {_checks.index_text(index)}, "
        f"{np.count_nonzero(wrong)} in all"
    )


def _no_revival(asked: Asked, case: Case) -> Finding | None:
    after = asked.of(case)
    tokens = after.shape[-1]
    for larger in sorted({case.num_kept + 1, (case.num_kept + tokens) // 2}):
        if not case.num_kept < larger < tokens:
            continue
        before = asked.of(case._replace(num_kept=larger))
        revived = after & ~before
        if revived.any():
            token = _checks.first_of(revived)[-1]
            return Finding(
                f"evicted token {token} at num_kept={larger} and kept it at {case.num_kept}",
                ((f"kept at {larger}", before), (f"kept at {case.num_kept}", after)),
            )
    return None


def _batch(asked: Asked, case: Case) -> Finding | None:
    axis = asked.axes.index("b")
    place = asked.axes.replace("t", "").index("b")  # of the mask, whose tokens are last
    scores, sequences = case.importance(), case.shape[axis]
    if sequences == 1:
        return None
    keep = asked.of(case)
    turned = asked.keep(np.flip(scores, axis).copy(), case.num_kept, case.seed)
    if (np.flip(turned, place) != keep).any():
        return Finding(
            "kept other tokens when the sequences came in reverse order",
            (("kept", keep), ("kept in reverse order, turned back", np.flip(turned, place))),
        )
    for sequence in range(sequences):
        alone = asked.keep(scores.take([sequence], axis), case.num_kept, case.seed)
        if (alone != keep.take([sequence], place)).any():
            return Finding(
                f"kept other tokens of b={sequence} when it came alone",
                (("kept together", keep), (f"kept of b={sequence} alone", alone)),
            )
    return None


def _padding(asked: Asked, case: Case) -> Finding | None:
    """Pad sequences to one width with the highest scores, which a policy must not believe."""
    axis = asked.token_axis
    scores, tokens = np.moveaxis(case.importance(), axis, -1), case.shape[axis]
    batch = asked.axes.replace("t", "").find("b")
    wide = (*scores.shape[:-1], tokens + _PADDING)
    sequences = scores.shape[batch] if batch >= 0 else 1
    for side in ("left", "right"):
        padded, valid = np.full(wide, scores.max() + 1), np.zeros(wide, np.bool_)
        wanted = np.zeros(wide, np.bool_)
        for sequence in range(sequences):
            # Lengths differ where the budget leaves something to evict of the shorter ones.
            length = tokens - sequence if case.num_kept < tokens - sequence else tokens
            start = wide[-1] - length if side == "left" else 0
            rows: tuple[slice, ...] = (slice(None),) * scores.ndim
            if batch >= 0:
                rows = (*rows[:batch], slice(sequence, sequence + 1), *rows[batch + 1 :])
            real, there = (*rows[:-1], slice(length)), (*rows[:-1], slice(start, start + length))
            padded[there], valid[there] = scores[real], True
            alone = np.moveaxis(scores[real], -1, axis)
            wanted[there] = asked.keep(_own(alone), case.num_kept, case.seed)
        keep = asked.keep(
            _own(np.moveaxis(padded, -1, axis)),
            case.num_kept,
            case.seed,
            np.ascontiguousarray(np.moveaxis(valid, -1, axis)),
        )
        if (keep != wanted).any():
            return Finding(
                f"kept other tokens with padding at the {side} ({wide[-1]} tokens wide): "
                f"{np.count_nonzero(keep & ~valid)} of padding kept, "
                f"{_num_other(keep, wanted)} differ in all",
                (
                    (f"kept with padding at the {side}", keep),
                    ("kept without, in its place", wanted),
                ),
            )
    return None


def _own(scores: Scores) -> Scores:
    return np.ascontiguousarray(scores)


def _num_other(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(a != b))


def _tied(asked: Asked) -> Iterator[Case]:
    return ordinary(asked, "tied")


LAWS: Final = {
    "shape": Law("the mask has the shape of the scores", _shape),
    "dtype": Law("the mask is of booleans", _dtype),
    "budget": Law("exactly num_kept tokens of each row stay", _budget),
    "edge_budgets": Law(
        "min(num_kept, tokens) stay, at 0, at all tokens and more, and below sinks and window",
        _budget,
        edges,
    ),
    "ties": Law("exactly num_kept tokens of each row stay where scores are equal", _budget, _tied),
    "sinks": Law("the first tokens stay", _sinks, is_asked=lambda asked: asked.sinks > 0),
    "window": Law("the last tokens stay", _window, is_asked=lambda asked: asked.window > 0),
    "deterministic": Law("the same call keeps the same tokens", _deterministic, alternating),
    "input_unchanged": Law("the scores are not written to", _input_unchanged),
    "no_revival": Law("what is evicted at one budget is evicted at every smaller one", _no_revival),
    "batch": Law(
        "a sequence keeps the same tokens in any order of the batch, and alone",
        _batch,
        alternating,
        is_asked=lambda asked: (
            "b" in asked.axes and "b" not in asked.mean_over and not asked.takes_rng
        ),
    ),
    "padding": Law(
        "padding at the left or right changes nothing, and none of it stays",
        _padding,
        is_asked=lambda asked: asked.takes_valid and not asked.takes_rng,
    ),
}
"""By name, in the order in which they are asked."""

FIRST: Final = ("shape", "dtype")
"""Laws without which those that follow cannot be asked."""

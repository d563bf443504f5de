"""Which masks and saved reports the command line names, and counting them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import numpy as np

from kvreclaim._cli import console
from kvreclaim._cli.overview import Counted
from kvreclaim._formats import choice, opening
from kvreclaim.census import take_censuses
from kvreclaim.comparison import Comparison, unique
from kvreclaim.files import MAX_BYTES, SavedMasks, census_of_file, load_masks, mask_names
from kvreclaim.pool import BlockPool
from kvreclaim.reports import Report

_DRAWN: Final = "bs"  # letters of sequences and seeds: of one at a time, replicates
_MOST_OFFERED: Final = 3  # masks, where one is refused
_SOME: Final = 1 << 16  # bytes of a file in which a report says that it is one
_OF_EVICTION: Final = re.compile(  # as words of a name: no letter on either side
    r"(?<![^\W\d_])"
    r"(dead|gone|evict(ed|ions?)?|drop(ped)?|discard(ed)?|(delet|eras|prun|remov)ed?)"
    r"(?![^\W\d_])",
    re.IGNORECASE,
)
_TIME_OF_EVICTION: Final = "evicted_at"  # of each token, no mask
_WITHOUT_NAMES: Final = (".npy", ".txt", ".csv")  # files in which an array has none
_NAMED_BY_NUMPY: Final = re.compile(r"arr_\d+")  # where its caller gave savez none

_Item = TypeVar("_Item")


class SavedReport(NamedTuple):
    """A report in a file, and what it is one of several replicates of."""

    report: Report
    replicate_of: str | None


class SavedMask(NamedTuple):
    """A mask in a file, not read yet."""

    path: Path
    array: str  # its name in the file
    called: str  # in messages: its file, and its name there


def masks_in(
    paths: Sequence[tuple[str, Path]], options: argparse.Namespace
) -> dict[str, SavedMask]:
    """Return the masks of files that were asked for, by the names of their rows."""
    return _labelled(
        [mask for name, path in paths for mask in _masks(name, path, options)], options
    )


def masks_and_reports_in(
    paths: Sequence[tuple[str, Path]], options: argparse.Namespace
) -> dict[str, SavedMask | SavedReport]:
    """Return masks, and reports that files of JSON hold, by the names of their rows."""
    found: list[tuple[str, SavedMask | SavedReport]] = []
    for called, (name, path) in zip(unique(name for name, _ in paths), paths, strict=True):
        found += _saved_reports(name, path, called) or _masks(name, path, options)
    return _labelled(found, options)


def _masks(name: str, path: Path, options: argparse.Namespace) -> list[tuple[str, SavedMask]]:
    arrays = _arrays_in(path, options.array)
    called = {array: f"{name}:{array}" if array else name for array in arrays}
    return [(called[array], SavedMask(path, array, called[array])) for array in arrays]


def _arrays_in(path: Path, asked: Sequence[str] | None) -> Sequence[str]:
    """Return the names of the masks that were asked for, or of all."""
    if asked is None:
        return mask_names(path)
    if "keep" not in asked:
        return asked
    names = mask_names(path)
    return [choice.meant(names, array) for array in asked]


def _saved_reports(name: str, path: Path, called: str) -> list[tuple[str, SavedReport]]:
    """Return the reports in a file; none where it does not say that it holds any.

    `called` is what the file is called where its replicates are named; it may be given twice.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        start = file.read(_SOME)
    if start.startswith(b"source,"):
        raise ValueError(
            f"{name}: FILE must be masks, or reports as JSON; got a table of reports; write it "
            "with --format json."
        )
    if b'"signature"' not in start:
        return []
    try:
        saved = Comparison.from_json(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    single = len(saved.reports) == 1
    groups = {row: each.name for each in saved.replicates for row in each.rows}
    return [
        (
            name if single else f"{name}:{source}",
            SavedReport(report, f"{called}:{groups[row]}" if row in groups else None),
        )
        for row, (source, report) in enumerate(zip(saved.names, saved.reports, strict=True))
    ]


def _labelled(found: Sequence[tuple[str, _Item]], options: argparse.Namespace) -> dict[str, _Item]:
    """Give what was found its labels, or names of which none is there twice."""
    labels = options.label or [name for name, _ in found]
    if len(labels) != len(found):
        raise ValueError(
            f"label must be given once for each of the {len(found)} masks, in their order; got "
            f"{len(labels)}; write --label {len(found)} times, or not at all."
        )
    return dict(zip(unique(labels), (item for _, item in found), strict=True))


def notes_on_polarity(masks: Iterable[SavedMask], options: argparse.Namespace) -> list[str]:
    """Return a note for each mask whose name says eviction, where nobody said what True means."""
    if options.polarity is not None:
        return []
    doubtful = dict.fromkeys(mask.called for mask in masks if _says_eviction(mask))
    return [
        f"note: {called}: True was read as kept; write --polarity evict if it means evicted, "
        "--polarity keep if kept"
        for called in doubtful
    ]


def _says_eviction(mask: SavedMask) -> bool:
    name, path = mask.array, mask.path
    if _NAMED_BY_NUMPY.fullmatch(name) or (not name and path.suffix.lower() in _WITHOUT_NAMES):
        name = path.stem
    if name.rpartition("/")[2] == _TIME_OF_EVICTION:
        return False
    return _OF_EVICTION.search(name) is not None


def _polarity(options: argparse.Namespace) -> Literal["keep", "evict"]:
    return "evict" if options.polarity == "evict" else "keep"


def count(
    masks: Mapping[str, SavedMask], pools: Sequence[BlockPool], options: argparse.Namespace
) -> dict[str, dict[str, Counted]]:
    """Count each mask under each pool, in a stream; with ``by``, each index of its letters."""
    counted: dict[str, dict[str, Counted]] = {}
    with console.Progress() as progress:
        for number, (name, mask) in enumerate(masks.items()):
            steps = (
                progress.part(number * len(pools) + i, len(masks) * len(pools), name)
                for i in range(len(pools))
            )
            with named(name, mask, options):
                if options.by:
                    counted[name] = _count_by(name, mask, pools[0], options, next(steps))
                    continue
                censuses = [
                    census_of_file(
                        mask.path,
                        pool,
                        array=mask.array,
                        axes=options.axes,
                        lengths=options.lengths,
                        offset=options.offset,
                        polarity=_polarity(options),
                        progress=step,
                    )
                    for pool, step in zip(pools, steps, strict=True)
                ]
                counted[name] = {name: Counted(_axes_of(mask, options), censuses)}
    return counted


def _count_by(
    name: str,
    mask: SavedMask,
    pool: BlockPool,
    options: argparse.Namespace,
    progress: Callable[[int, int], None],
) -> dict[str, Counted]:
    saved = load(mask, options, progress)
    if saved.axes is None:
        raise ValueError(
            "axes must name the axes of the mask, so that by can tell them apart; got none; write "
            "such as --axes lht."
        )
    censuses = take_censuses(
        saved.keep,
        pool,
        by=options.by,
        axes=saved.axes,
        lengths=saved.lengths,
        offset=saved.offset,
    )
    drawn = [letter for letter in options.by if letter in _DRAWN]
    counted = {}
    for index, census in censuses.items():
        parts = dict(zip(options.by, map("{}={}".format, options.by, index), strict=True))
        fixed = [part for letter, part in parts.items() if letter not in drawn]
        counted[" ".join([name, *parts.values()])] = Counted(
            saved.axes,
            [census],
            " ".join([name, *fixed]) if len(drawn) == 1 else None,
        )
    return counted


@contextmanager
def opened(mask: SavedMask, options: argparse.Namespace) -> Iterator[choice.Chosen]:
    """Open a mask, of which nothing but what is said of it is read, with what the options say."""
    with opening.arrays_of(mask.path, MAX_BYTES) as (where, arrays):
        yield choice.choose(
            where,
            arrays,
            mask.array,
            axes=options.axes,
            lengths=options.lengths,
            offset=options.offset,
            most=MAX_BYTES,
        )


def _axes_of(mask: SavedMask, options: argparse.Namespace) -> str | None:
    """Return the axes that the file or the caller names."""
    with opened(mask, options) as chosen:
        return chosen.axes


def load(
    mask: SavedMask, options: argparse.Namespace, progress: Callable[[int, int], None] | None = None
) -> SavedMasks:
    """Return a mask with what file and options say of it."""
    saved = load_masks(
        mask.path,
        array=mask.array,
        axes=options.axes,
        lengths=options.lengths,
        polarity=_polarity(options),
        progress=progress,
    )
    return saved._replace(offset=options.offset) if np.any(options.offset) else saved


@contextmanager
def named(name: str, mask: SavedMask, options: argparse.Namespace) -> Iterator[None]:
    """Put the mask's name in front of what is wrong with it, unless it names its file.

    Where nobody asked for this mask, say which others of its file there are to ask for.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        if options.polarity != "evict":
            text = choice.also_polarity(text, "--polarity evict")
        others = [] if options.array else _other_masks(mask, options)
        if others:
            asked = " ".join(f"--array {shlex.quote(other)}" for other in others)
            text = f"{text.removesuffix('.')}, or {asked} to leave {mask.array!r} out."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(text if str(mask.path) in text else f"{name}: {text}") from None


def _other_masks(mask: SavedMask, options: argparse.Namespace) -> list[str]:
    """Return what asks for the first masks of a file, where this array of it looks like none."""
    try:
        with opening.arrays_of(mask.path, MAX_BYTES) as (_, arrays):
            likely = choice.likely_masks(
                arrays,
                axes=options.axes,
                lengths=options.lengths,
                offset=options.offset,
                most=MAX_BYTES,
            )
    except (OSError, TypeError, ValueError):  # what is wrong with the file is said already
        return []
    return [] if mask.array in likely else list(likely.values())[:_MOST_OFFERED]

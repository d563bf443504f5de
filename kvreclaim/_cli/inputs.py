"""Which masks and saved reports the command line names, and counting them."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kvreclaim._cli import console
from kvreclaim._cli.overview import Counted
from kvreclaim._formats import choice, grouping, reading
from kvreclaim._formats.choice import Chosen
from kvreclaim._formats.grouping import OpenMasks
from kvreclaim.census import take_censuses
from kvreclaim.comparison import Comparison, unique
from kvreclaim.files import MAX_BYTES, SavedMasks, load_chosen, open_masks
from kvreclaim.pool import BlockPool
from kvreclaim.reports import Report

_DRAWN: Final = "bs"  # letters of sequences and seeds: of one at a time, replicates
_MOST_OFFERED: Final = 3  # masks, where one is refused
_SOME: Final = 1 << 16  # bytes of a file in which a report says that it is one
_WORD: Final = r"(?<![^\W\d_])({})(?![^\W\d_])"  # of a name: no letter on either side
_OF_EVICTION: Final = re.compile(
    _WORD.format("dead|gone|evict(ed|ions?)?|drop(ped)?|discard(ed)?|(delet|eras|prun|remov)ed?"),
    re.IGNORECASE,
)
_OF_KEEPING: Final = re.compile(
    _WORD.format("keep|kept|live|alive|retain(ed)?|surviv(ed?|ors?|ing)"), re.IGNORECASE
)
_TIME_OF_EVICTION: Final = "evicted_at"  # of each token, no mask

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
    kept_as: str = ""  # the word of its file for it, where that says that True is kept


_Named: TypeAlias = tuple[str, SavedMask]


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
    """Return the masks of a file that were asked for, or all."""
    with open_masks(path) as held:
        asked = options.array or held.masks
        arrays = [grouping.meant(held.masks, array) for array in asked]
        called = [f"{name}:{array}" if array else name for array in arrays]
        return [
            (label, SavedMask(path, array, label, grouping.word_of_kept(held, array)))
            for array, label in zip(arrays, called, strict=True)
        ]


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
    """Return a note for each mask of which a name says the opposite of how it was read.

    Where the options say what True means, that is only what was meant for other files.
    """
    if options.polarity == "evict":
        turned = {mask.called: mask.kept_as for mask in masks if mask.kept_as}
        return [
            f"note: {called}: True was read as evicted, as --polarity says, though the file calls "
            f"it {word!r}; leave --polarity out, in a call of its own, if True means kept"
            for called, word in turned.items()
        ]
    if options.polarity == "keep":
        return []
    doubtful = dict.fromkeys(mask.called for mask in masks if _says_eviction(mask))
    return [
        f"note: {called}: True was read as kept; write --polarity evict if it means evicted, "
        "--polarity keep if kept"
        for called in doubtful
    ]


def _says_eviction(mask: SavedMask) -> bool:
    """Return whether a mask is called after eviction; or its file, where nothing says keep."""
    names = [mask.array]
    if not (mask.kept_as or _OF_KEEPING.search(mask.array)):
        names.append(mask.path.stem)
    if any(name.rpartition("/")[2] == _TIME_OF_EVICTION for name in names):
        return False
    return any(_OF_EVICTION.search(name) for name in names)


def by_file(masks: Iterable[_Named]) -> Iterator[tuple[Path, list[_Named]]]:
    """Yield each file and its masks, with their names, so that it is opened once for all."""
    for path, group in itertools.groupby(masks, key=lambda named: named[1].path):
        yield path, list(group)


def choose(held: OpenMasks, mask: SavedMask, options: argparse.Namespace) -> Chosen:
    """Return a mask of an open file, of which nothing is read yet, with what the options say."""
    return choice.choose(
        held,
        mask.array,
        axes=options.axes,
        lengths=options.lengths,
        offset=options.offset,
        most=MAX_BYTES,
    )


def load(
    held: OpenMasks,
    mask: SavedMask,
    options: argparse.Namespace,
    progress: Callable[[int, int], None] | None = None,
) -> SavedMasks:
    """Return a mask of an open file with what file and options say of it."""
    return load_chosen(
        choose(held, mask, options),
        evicted=options.polarity == "evict",
        most=MAX_BYTES,
        progress=progress,
    )


def count(
    masks: Mapping[str, SavedMask], pools: Sequence[BlockPool], options: argparse.Namespace
) -> dict[str, dict[str, Counted]]:
    """Count each mask under each pool, in a stream; with ``by``, each index of its letters."""
    counted: dict[str, dict[str, Counted]] = {}
    with console.Progress() as progress:
        for path, of_file in by_file(masks.items()):
            with open_masks(path) as held:
                for name, mask in of_file:
                    before = len(counted) * len(pools)
                    steps = [
                        progress.part(before + i, len(masks) * len(pools), name)
                        for i in range(len(pools))
                    ]
                    with named(name, mask, options):
                        if options.by:
                            saved = load(held, mask, options, steps[0])
                            counted[name] = _count_by(name, saved, pools[0], options)
                        else:
                            counted[name] = {name: _count(held, mask, pools, options, steps)}
    return counted


def _count(
    held: OpenMasks,
    mask: SavedMask,
    pools: Sequence[BlockPool],
    options: argparse.Namespace,
    steps: Sequence[Callable[[int, int], None]],
) -> Counted:
    censuses = []
    for pool, step in zip(pools, steps, strict=True):
        chosen = choose(held, mask, options)
        census = reading.count(
            chosen,
            pool,
            evicted=options.polarity == "evict",
            most=MAX_BYTES,
            progress=step,
        )
        censuses.append(census)
    return Counted(chosen.axes, censuses)


def _count_by(
    name: str, saved: SavedMasks, pool: BlockPool, options: argparse.Namespace
) -> dict[str, Counted]:
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
def named(name: str, mask: SavedMask, options: argparse.Namespace) -> Iterator[None]:
    """Put the mask's name in front of what is wrong with it, unless it names its file.

    Where nobody asked for this mask, say which others of its file there are to ask for.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        if options.polarity != "evict":
            text = reading.also_polarity(text, "--polarity evict")
        others = [] if options.array else _other_masks(mask, options)
        if others:
            asked = " ".join(f"--array {shlex.quote(other)}" for other in others)
            text = f"{text.removesuffix('.')}, or {asked} to leave {mask.array!r} out."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(text if str(mask.path) in text else f"{name}: {text}") from None


def _other_masks(mask: SavedMask, options: argparse.Namespace) -> list[str]:
    """Return what asks for the first masks of a file, where this array of it looks like none."""
    likely: list[str] = []
    try:
        with open_masks(mask.path) as held:
            for name, part in held.masks.items():
                with suppress(TypeError, ValueError):
                    choose(held, mask._replace(array=name), options)
                    if grouping.begins_as_mask(part):
                        if name == mask.array:
                            return []
                        likely.append(grouping.asked_as(held.masks, name))
    except (OSError, TypeError, ValueError):  # what is wrong with the file is said already
        return []
    return likely[:_MOST_OFFERED]

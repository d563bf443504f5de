"""Which masks and saved reports the command line names, and opening them."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kvreclaim._formats import choice, grouping, reading
from kvreclaim._formats.choice import Chosen
from kvreclaim._formats.grouping import OpenMasks
from kvreclaim.comparison import Comparison, unique
from kvreclaim.files import MAX_BYTES, SavedMasks, load_chosen, open_masks
from kvreclaim.reports import Report

_MOST_OFFERED: Final = 3  # masks, where one is refused
_SOME: Final = 1 << 16  # bytes of a file in which a report says that it is one

_OF_MASKS: Final = (b'"kept"', b'"runs"', b'"keep"')  # whose notes may name a signature

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
    if b'"signature"' not in start or any(word in start for word in _OF_MASKS):
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


def by_file(masks: Iterable[_Named]) -> Iterator[tuple[Path, list[_Named]]]:
    """Yield each file and its masks, with their names, so that it is opened once for all."""
    for path, group in itertools.groupby(masks, key=lambda named: named[1].path):
        yield path, list(group)


def opened(masks: Iterable[_Named]) -> Iterator[tuple[str, SavedMask, OpenMasks]]:
    """Yield each mask by its name, and the file that it lies in, open."""
    for path, of_file in by_file(masks):
        with open_masks(path) as held:
            for name, mask in of_file:
                yield name, mask, held


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
            asked = " ".join(map(_option, others[:_MOST_OFFERED]))
            if len(others) > _MOST_OFFERED:
                asked = f"--array for each of the {len(others)} masks, such as {asked},"
            text = f"{text.removesuffix('.')}, or {asked} to leave {mask.array!r} out."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(text if str(mask.path) in text else f"{name}: {text}") from None


def _option(array: str) -> str:
    """Return the option that asks for a mask, which a name with a dash would end."""
    return f"--array{'=' if array.startswith('-') else ' '}{shlex.quote(array)}"


def _other_masks(mask: SavedMask, options: argparse.Namespace) -> list[str]:
    """Return what asks for the masks of a file, where this array of it looks like none."""
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
    return likely

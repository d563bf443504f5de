"""What the commands take: the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

import attrs

import kvreclaim
from kvreclaim import runtimes
from kvreclaim._cli import values
from kvreclaim.pool import COMPACTORS, FREES, BlockPool

FORMATS: Final = ("table", "json", "jsonl", "csv", "markdown", "latex")

_FILE: Final = (
    ".npy, .npz, .json, .jsonl, .csv, .txt, .safetensors, .pt, .parquet, .zarr; - is stdin; JSON "
    'of kept positions: {"axes": "ht", "num_tokens": 12, "kept": [[5, 1, 9], [0, 3]]}'
)
_NUMBERS: Final = "one number, one for each sequence (9,7,9), or @FILE that holds them"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command, whose name is `command`."""
    parser = argparse.ArgumentParser(
        prog="kvreclaim",
        description="Measure how much memory a KV-cache eviction gives back to a paged server.",
        epilog=(
            "kvreclaim COMMAND --help shows what a command takes, and examples.\n"
            "exit codes: 0 all is well, 1 a threshold was missed, 2 bad usage or input,\n"
            "130 interrupted."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"kvreclaim {kvreclaim.__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    _add_commands(parser.add_subparsers(required=True, metavar="COMMAND", dest="command"))
    return parser.parse_args(arguments)


def pool_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a BlockPool that were given."""
    names = [field.name for field in attrs.fields(BlockPool)]
    return {name: given for name in names if (given := getattr(options, name)) is not None}


def of_masks(options: argparse.Namespace) -> bool:
    """Return whether anything was given that only a mask, still to be measured, can follow."""
    names = ("array", "axes", "lengths", "polarity", "by", "blocks_per_request", "runtime")
    given = any(getattr(options, name) is not None for name in names)
    return given or options.offset != 0 or bool(pool_fields(options))


def _add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def add(
        name: str, takes: str, summary: str, description: str, examples: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            usage=f"kvreclaim {name} {takes}",
            help=summary,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(output=None)
        return command

    add(
        "demo",
        "[-h]",
        "report real masks that come with the package",
        "Report real keep-masks that come with the package: a row for each policy.",
        "  kvreclaim demo",
    )
    report = add(
        "report",
        "[options] FILE [FILE ...]",
        "report masks on disk",
        "Of one mask: every figure. Of several: a row each, over the layouts that\n"
        "differ; or, with --by or options of a pool, under that pool.",
        "  kvreclaim report masks.npz\n"
        "  kvreclaim report mask.npy --axes lht --block-size 32 --share h --by l\n"
        "  kvreclaim report seeds.npy --axes slht --by s\n"
        "  kvreclaim report *.npz --format csv -o figures.csv\n"
        "  kvreclaim report mask.npy --axes lht --fail-under physical_reclaim=0.3",
    )
    compared = add(
        "compare",
        "[options] FILE [FILE ...]",
        "compare masks, or reports written as JSON",
        "Masks, and reports that were written with --format json or jsonl, side by side.\n"
        "Reports that hold under different pools are refused.",
        "  kvreclaim compare a.npz b.npz --label SnapKV --label StreamingLLM\n"
        "  kvreclaim compare a.npz b.npz --axes blht --by b\n"
        "  kvreclaim compare before.json after.npz --block-size 32 --format latex",
    )
    compared.add_argument("--force", action="store_true", help="compare under different pools too")
    for command in (report, compared):
        _add_masks(command, several=True)
        _add_pool(command)
        _add_figures(command)
    drawn = add(
        "map",
        "[options] FILE [FILE ...]",
        "draw the blocks of masks",
        "A block map in text. A character is a slot, if that takes at most --lines lines;\n"
        "else a block, or 2, 4, 8 ... of them. Of more tables the first are drawn.",
        "  kvreclaim map mask.npy --axes lht --share none\n"
        "  kvreclaim map masks.npz --array SnapKV --lines 100",
    )
    _add_masks(drawn, several=True)
    _add_pool(drawn)
    drawn.add_argument(
        "--lines", type=values.positive, default=16, metavar="N", help="the longest map drawn (16)"
    )
    _add_output(drawn)
    convert = add(
        "convert",
        "[options] IN OUT",
        "write masks in the package's own form",
        "Write masks as packed bits, eight tokens a byte, with their axes and lengths.",
        "  kvreclaim convert kept.json masks.npz\n"
        "  kvreclaim convert dead.npy masks.safetensors --axes lht --polarity evict",
    )
    _add_masks(convert, several=False)
    convert.add_argument("target", metavar="OUT", help="the file to write: .npz or .safetensors")
    signature = add(
        "signature",
        "[options] [SIGNATURE]",
        "spell a pool as a signature, or explain one",
        "Print the signature of a pool; or explain the one that stands in a report.",
        "  kvreclaim signature --block-size 32 --share h --rows 8\n"
        '  kvreclaim signature "$(kvreclaim signature --runtime vllm)"',
    )
    signature.add_argument("signature", nargs="?", metavar="SIGNATURE", help="one to explain")
    signature.add_argument(
        "--rows", type=values.positive, metavar="N", help="rows of a block table (1)"
    )
    _add_pool(signature)


def _add_masks(command: argparse.ArgumentParser, *, several: bool) -> None:
    add = command.add_argument_group("masks").add_argument
    if several:
        command.add_argument("files", nargs="+", metavar="FILE", help=_FILE)
        add("--label", action="append", metavar="NAME", help="a mask's name; once for each mask")
    else:
        command.add_argument("files", nargs=1, metavar="IN", help=_FILE)
        command.set_defaults(label=None)
    add(
        "--array",
        action="append",
        metavar="NAME",
        help="only the mask of this name in its file; keep: also that without a name",
    )
    add("--axes", metavar="LETTERS", help="a letter for each axis, such as lht; t is tokens")
    add("--lengths", type=values.numbers, metavar="N,...", help=f"tokens of a sequence: {_NUMBERS}")
    add(
        "--offset",
        type=values.numbers,
        default=0,
        metavar="N,...",
        help="slots before token 0, in the same form",
    )
    add("--polarity", choices=("keep", "evict"), help="what True means (keep)")


def _add_pool(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("pool").add_argument
    add(
        "--runtime",
        type=values.runtime,
        metavar="NAME[:KEY=VALUE,...]",
        help=f"a server's own pool, which other options change: {', '.join(runtimes.names())}; "
        "all: each of them, in report",
    )
    add("--block-size", type=int, metavar="N", help="tokens of one block (16)")
    add(
        "--share",
        dest="shared_axes",
        type=lambda text: "" if text == "none" else text,
        metavar="LETTERS",
        help="axes whose rows live in the same block: lh, h, none, ... (lh)",
    )
    add("--frees", choices=FREES, help="the empty blocks that come back without a copy (any)")
    add("--open-tail", action="store_true", default=None, help="a partly written last block stays")
    add("--compactor", choices=COMPACTORS, help="how survivors are moved (evacuate)")
    add("--total-blocks", type=int, metavar="N", help="blocks of the pool (those of the masks)")
    add("--reserved-blocks", type=int, metavar="N", help="never handed out (0)")
    add("--watermark-blocks", type=int, metavar="N", help="left free by admission (0)")
    add("--entry-bytes", type=int, metavar="N", help="K and V of one token in one row")


def _add_figures(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("figures").add_argument
    add(
        "--by",
        metavar="LETTERS",
        help="a row for each index of these axes; of b (sequences) or s (seeds) also mean, sd and "
        "95 %% interval over them, and the paired difference of each mask from the first",
    )
    add(
        "--blocks-per-request",
        type=values.positive,
        metavar="N",
        help="also count requests admitted",
    )
    add("--format", choices=FORMATS, default="table", help="of the output (table)")
    add(
        "--fail-under",
        type=values.threshold,
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="exit with 1 where a figure, more being better, is lower or undefined; repeatable",
    )
    _add_output(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o", "--output", type=values.file, metavar="FILE", help="write here, whole or not at all"
    )

"""Fuzz the files that numpy alone reads: .npy, .npz, text, JSON and JSON lines.

    python tests/fuzz/fuzz_files.py --seconds 600 [CORPUS]

needs atheris. Whatever a file holds, it gives a mask or one clean TypeError or ValueError, from
`load_masks` and from `census_of_file`, and where both give a value it is the same. What breaks this
is a finding: its content is written to tests/data/fuzz, where test_fuzz.py replays it for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import math
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

FOUND: Final = Path(__file__).parent.parent / "data" / "fuzz"

_LONGEST: Final = 4096  # input
_MOST_BYTES: Final = 1 << 13  # of a mask: so that no input is slow
_LETTERS: Final = "bshxyzt"
_NAMES: Final = (
    "keep",
    "bits",
    "num_tokens",
    "bitorder",
    "axes",
    "lengths",
    "offset",
    "born_at",
    "evicted_at",
    "meta",
    "mask",
    "a/keep",
    "a/bits",
    "a/num_tokens",
    "/mask",
    "mask/lengths",
    "a/mask",
    "/lengths",
)
_TYPES: Final = ("|b1", "|u1", "<i8", ">i4", "<U4", "|O", "<f4", "<U0", "|V0", "<u8", ">U2", "|S1")
_ADVICE: Final = ("allow_pickle", "unsafe", "\n", "Traceback")


def check(content: bytes) -> None:
    """Read a file of this content in every way and compare what comes back."""
    files = importlib.import_module("kvreclaim.files")
    kvreclaim = importlib.import_module("kvreclaim")
    occupancy = importlib.import_module("kvreclaim.occupancy")
    chance = zlib.crc32(content)
    pool = kvreclaim.BlockPool((1, 3, 8, 16)[chance & 3], shared_axes=("", "h")[chance >> 2 & 1])
    said: dict[str, Any] = {
        "max_bytes": _MOST_BYTES,
        "polarity": ("keep", "evict")[chance >> 3 & 1],
    }
    names = _value(files.mask_names, io.BytesIO(content), max_bytes=_MOST_BYTES)
    with mock.patch.object(occupancy, "PIECE", (64, 1 << 20)[chance >> 4 & 1]):
        for name in (None, *(names or ())[:3]):
            said["array"] = name
            saved = _value(files.load_masks, io.BytesIO(content), **said)
            axes = None
            if saved is not None and saved.keep.ndim <= len(_LETTERS):
                axes = saved.axes or _LETTERS[-saved.keep.ndim :]
            census = _value(files.census_of_file, io.BytesIO(content), pool, axes=axes, **said)
            if saved is None:
                continue
            loaded = {"axes": axes, "lengths": saved.lengths, "offset": saved.offset}
            again = _value(kvreclaim.take_census, saved.keep, pool, **loaded)
            if again != census:
                raise AssertionError(f"{census} of the file is not {again} of its mask")


def _value(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
    """Return a value, or None for a clean error."""
    try:
        return call(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        text = str(error)
        if type(error) not in (TypeError, ValueError) or "; got " not in text:
            raise
        if any(advice in text for advice in _ADVICE):
            raise AssertionError(text) from error
        return None


def content_of(data: bytes) -> bytes:
    """Return the file that an input of the fuzzer stands for: itself, or an archive of pieces."""
    if data[:1] != b"Z":
        return data
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # names that stand twice
        for name, member in _members(data[1:]):
            archive.writestr(
                name, member, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[len(name) & 1]
            )
    return buffer.getvalue()


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    while len(data) > 4:
        name, kind, axes, size = data[:4]
        body, data = data[4 : 4 + size], data[4 + size :]
        shape = tuple(body[: axes & 3])
        body = body[axes & 3 :]
        header = {
            "descr": _TYPES[kind % len(_TYPES)],
            "fortran_order": bool(axes & 4),
            "shape": shape,
        }
        line = f"{header}\n".encode()
        start = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little")
        if axes & 8:  # as many bytes as the header declares: what is read goes deeper
            numpy = importlib.import_module("numpy")
            with contextlib.suppress(TypeError, ValueError):
                need = numpy.dtype(header["descr"]).itemsize * math.prod(shape)
                need = min(need, 2 * _MOST_BYTES)
                body = (body * (need // max(len(body), 1) + 1))[:need] if body else bytes(need)
        yield f"{_NAMES[name % len(_NAMES)]}.npy", start + line + body


def _seeds() -> Iterator[bytes]:
    """Yield files to begin with: what was found, and the tables of test_files.py."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    tables = importlib.import_module("test_files")
    yield from (path.read_bytes() for path in FOUND.iterdir())
    yield from (form.make for form in tables.FORMS.values() if isinstance(form.make, bytes))
    yield from (content for _, content, _ in tables.REFUSED.values() if len(content) < _LONGEST)
    # Of an archive of pieces: a name, a type, an order and axes, how many bytes, the bytes.
    yield b"Z\x00\x00\x0a\x05\x02\x09\x01\x00\x01" + b"\x04\x04\x08\x10b\x00\x00\x00t" + bytes(11)
    yield b"Z\x01\x01\x0a\x04\x02\x02\xf0\x0f" + b"\x02\x02\x08\x08\x10" + bytes(7)


def main() -> None:
    """Fuzz for so many seconds, and keep what is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("corpus", nargs="?", type=Path, help="folder to keep inputs in")
    options = parser.parse_args()
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["kvreclaim", "zipfile", "json"]):
        importlib.import_module("kvreclaim.files")

    def one_input(data: bytes) -> None:
        content = content_of(data)
        try:
            check(content)
        except BaseException:
            FOUND.mkdir(exist_ok=True)
            path = FOUND / hashlib.sha256(content).hexdigest()[:16]
            path.write_bytes(content)
            sys.stderr.write(f"found: {path}\n")
            raise

    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or Path(folder)
        for content in _seeds():
            (corpus / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
        limits = [f"-max_total_time={options.seconds}", "-timeout=20", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *limits, f"-max_len={_LONGEST}", str(corpus)], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

"""What a command owes its terminal: whole files, quiet pipes, a bar that shows progress."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self, TextIO

from kvreclaim._formats import writing
from kvreclaim._render import tables

_BAR: Final = 20  # characters
_QUIET_SECONDS: Final = 0.5  # that a command may take before it shows progress
_FRAME_SECONDS: Final = 0.1
_STDIN: Final = "standard input"


def write(text: str, path: str | None) -> None:
    """Write text and a newline to a file, whole or not at all; without a path to stdout."""
    try:
        if path is not None and path != "-":
            with naming(path):
                _write_file(Path(path), f"{text}\n".encode("utf-8", "backslashreplace"))
            return
        if sys.stdout is None:
            raise OSError("standard output: closed")
        with naming("standard output"):
            sys.stdout.write(f"{_encodable(text, sys.stdout)}\n")
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader has all that it wanted


def refuse_own_input(path: str | None, files: Sequence[str], name: str = "-o") -> None:
    """Refuse to write over a file that is read."""
    if path is None or path == "-" or not Path(path).exists():
        return
    for file in files:
        if file != "-" and Path(file).exists() and Path(path).samefile(file):
            raise ValueError(
                f"{name} must be another file than those that are read; got {path}; write a new "
                "name."
            )


def complain(text: str) -> None:
    """Write a line to stderr."""
    if sys.stderr is not None:
        try:
            line = _encodable(tables.printable(text), sys.stderr)
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except OSError:
            _abandon(sys.stderr)


def settle() -> None:
    """Flush both streams, so that a closed pipe cannot speak up when the interpreter ends."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                _abandon(stream)


def can_show(characters: str, path: str | None) -> bool:
    """Return whether what `write` writes to can hold these characters."""
    encoding = "utf-8" if path is not None else getattr(sys.stdout, "encoding", None) or "ascii"
    return characters.encode(encoding, "ignore").decode(encoding) == characters


def _encodable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _abandon(stream: TextIO) -> None:
    """Let what is still in the stream's buffer go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write_file(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():  # a device or a pipe
        with path.open("wb") as file:
            file.write(data)
        return
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    writing.write_whole(os.fspath(path), lambda file: shutil.copyfileobj(io.BytesIO(data), file))


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Let an error in writing a file name that file, not one beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None


@contextlib.contextmanager
def readable(names: Sequence[str]) -> Iterator[list[tuple[str, Path]]]:
    """Yield each file's name and path; ``-`` is stdin, copied to a file while this lasts."""
    if "-" not in names:
        yield [(name, Path(name)) for name in names]
        return
    if names.count("-") > 1:
        raise ValueError("FILE must be '-', which is stdin, at most once; got it twice.")
    if sys.stdin is None:
        raise OSError(f"{_STDIN}: closed")
    with tempfile.TemporaryDirectory(prefix="kvreclaim-") as folder:
        spooled = Path(folder, "stdin")
        with spooled.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield [(_STDIN, spooled) if name == "-" else (name, Path(name)) for name in names]
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(str(error).replace(str(spooled), _STDIN)) from None


class Progress:
    """A bar on stderr, where that is a terminal and the command takes its time."""

    def __init__(self) -> None:
        self._stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._next = time.monotonic() + _QUIET_SECONDS
        self._width = 0

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wipe the bar away."""
        if self._width:
            self._draw("")

    def part(self, number: int, count: int, what: str) -> Callable[[int, int], None]:
        """Return what shows how much is done of a part: which one, of how many, of what."""

        def show(done: int, total: int) -> None:
            now = time.monotonic()
            if self._stream is not None and now >= self._next:
                self._next = now + _FRAME_SECONDS
                share = (number + done / max(total, 1)) / count
                bar = "#" * int(_BAR * share)
                self._draw(f"[{bar:.<{_BAR}}] {share:4.0%} {tables.printable(what)}")

        return show

    def _draw(self, line: str) -> None:
        if self._stream is not None:
            text = _encodable(line, self._stream)[: tables.WIDTH - 1]
            with contextlib.suppress(OSError):
                self._stream.write(f"\r{text:<{self._width}}\r{text}")
                self._stream.flush()
            self._width = len(text)

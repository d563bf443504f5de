"""What the fuzzer of files has found, replayed; and a few mutations of whole files, each run.

The fuzzer itself is fuzz/fuzz_files.py, which needs atheris.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_files import FORMS

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
from fuzz_files import FOUND, check, content_of

WHOLE = [form.make for form in FORMS.values() if isinstance(form.make, bytes)]


@pytest.mark.parametrize("name", sorted(path.name for path in FOUND.iterdir()))
def test_what_was_found_stays_clean(name: str) -> None:
    check((FOUND / name).read_bytes())


@given(st.sampled_from(WHOLE), st.data())
def test_a_file_with_a_few_bytes_changed_is_read_or_refused(
    whole: bytes, data: st.DataObject
) -> None:
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    check(bytes(content))


@given(st.binary(max_size=200))
def test_an_archive_of_anything_is_read_or_refused(data: bytes) -> None:
    check(content_of(b"Z" + data))

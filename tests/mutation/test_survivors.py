"""The list of survivors against the code: what it names must still stand there."""

from __future__ import annotations

from pathlib import Path

import gate
import pytest

import kvreclaim

PACKAGE = Path(kvreclaim.__file__).parent
LISTED = gate.read_list(gate.LIST.read_text("utf-8"))


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_line_still_stands_in_the_code(name: str) -> None:
    where, _, change = name.partition(": ")
    module, _, function = where.partition(".")
    was, arrow, became = change.partition(" => ")
    assert module in gate.GATED
    assert arrow
    assert was != became
    code = (PACKAGE / f"{module}.py").read_text("utf-8")
    assert f"def {function.rpartition('.')[2]}(" in code
    assert was in " ".join(line.strip() for line in code.splitlines())


def test_every_module_of_the_core_is_there_with_its_tests() -> None:
    assert set(gate.GATED) <= set(gate.TESTS)
    for module, tests in gate.TESTS.items():
        assert (PACKAGE / f"{module}.py").is_file()
        for name in tests:
            assert (gate.ROOT / "tests" / f"test_{name}.py").is_file()
    for test in gate.DESELECTED:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (gate.ROOT / "tests" / f"test_{file}").read_text("utf-8")


def test_a_list_is_read_by_its_reasons() -> None:
    text = "# The same\n# either way.\na.f: 1 => 2\na.g: x => y\n\n# Slower.\nb.f: 1 => 2\n"
    assert gate.read_list(text) == {
        "a.f: 1 => 2": "The same either way.",
        "a.g: x => y": "The same either way.",
        "b.f: 1 => 2": "Slower.",
    }


@pytest.mark.parametrize("text", ["a.f: 1 => 2", "# Why.\na.f: 1 => 2\na.f: 1 => 2"])
def test_a_mutant_without_a_reason_or_listed_twice(text: str) -> None:
    with pytest.raises(ValueError, match="must be listed once, with a reason"):
        gate.read_list(text)

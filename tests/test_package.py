"""What the package shows and what importing it costs."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
from pathlib import Path

import attrs
import pytest
from scripts import fresh

import kvreclaim

FUNCTIONS = [name for name in kvreclaim.__all__ if inspect.isfunction(getattr(kvreclaim, name))]
CLASSES = [name for name in kvreclaim.__all__ if inspect.isclass(getattr(kvreclaim, name))]
NUMBERS = [name for name in kvreclaim.__all__ if isinstance(getattr(kvreclaim, name), int)]
MODULES = [name for name in kvreclaim.__all__ if inspect.ismodule(getattr(kvreclaim, name))]
PUBLIC = {name: getattr(kvreclaim, name) for name in FUNCTIONS + CLASSES} | {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in vars(getattr(kvreclaim, module)).items()
    if name[0] != "_" and getattr(value, "__module__", "") == f"kvreclaim.{module}"
}


def test_public_names_exist_once_each() -> None:
    assert sorted(FUNCTIONS + CLASSES + NUMBERS + MODULES) == sorted(kvreclaim.__all__)
    assert len(kvreclaim.__all__) == len(set(kvreclaim.__all__))
    assert not [name for name in kvreclaim.__all__ if name.startswith("_")]


def test_every_public_name_comes_from_inside() -> None:
    for name in FUNCTIONS + CLASSES:
        assert getattr(kvreclaim, name).__module__.startswith("kvreclaim."), name
        assert getattr(kvreclaim, name).__name__ == name
    for name in MODULES:
        assert getattr(kvreclaim, name).__name__ == f"kvreclaim.{name}"


def test_nothing_else_is_public() -> None:
    others = {
        name
        for name, value in vars(kvreclaim).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert others == {*FUNCTIONS, *CLASSES, *NUMBERS}


@pytest.mark.parametrize("name", [n for n, value in PUBLIC.items() if inspect.isfunction(value)])
def test_a_function_says_what_it_does_and_shows_it(name: str) -> None:
    function = PUBLIC[name]
    text = inspect.getdoc(function)
    assert text
    first, _, rest = text.partition("\n")
    assert first.endswith(".")
    assert len(first) <= 100
    assert "Examples\n--------\n" in rest
    assert ">>> " in rest
    signature = inspect.signature(function)
    assert signature.return_annotation != inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation != inspect.Parameter.empty, parameter


@pytest.mark.parametrize("name", [n for n, value in PUBLIC.items() if inspect.isclass(value)])
def test_a_record_is_frozen_and_says_what_each_field_means(name: str) -> None:
    record = PUBLIC[name]
    text = inspect.getdoc(record)
    assert text
    assert text.partition("\n")[0].endswith(".")
    if issubclass(record, tuple):
        fields = list(record._fields)
    else:
        fields = [field.name for field in attrs.fields(record)]
        assert record.__setattr__ is not object.__setattr__
    assert fields
    for field in fields:
        assert field in text, field
    for member, value in vars(record).items():
        if isinstance(value, property) or (inspect.isfunction(value) and member[0] != "_"):
            assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_the_one_installed() -> None:
    installed = {
        distribution.version for distribution in importlib.metadata.distributions(name="kvreclaim")
    }
    assert installed <= {kvreclaim.__version__}


def test_types_are_shipped() -> None:
    assert kvreclaim.__file__ is not None
    assert Path(kvreclaim.__file__).with_name("py.typed").is_file()


HEAVY = ("scipy", "torch", "pandas", "matplotlib", "hypothesis", "pyarrow", "jax", "dask")


def test_importing_all_of_it_loads_numpy_and_attrs_only() -> None:
    shown = fresh(
        "import sys; from kvreclaim import *; "
        f"print([name for name in {HEAVY!r} if name in sys.modules], 'numpy' in sys.modules)",
        silent=True,
    )
    assert shown == "[] True"


def test_a_name_is_found_where_a_type_checker_finds_it() -> None:
    tree = ast.parse(Path(kvreclaim.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {
        alias.name: node.module for node in imports for alias in node.names if alias.asname is None
    }
    found = {name: f"kvreclaim.{home}" for name, home in kvreclaim._HOMES.items()}
    assert seen == found | dict.fromkeys(MODULES, "kvreclaim")
    assert set(seen) == set(kvreclaim.__all__)


def test_importing_alone_loads_no_part_and_every_name_is_listed() -> None:
    shown = fresh(
        "import sys, kvreclaim; print('numpy' in sys.modules, "
        "set(kvreclaim.__all__) <= set(dir(kvreclaim)), kvreclaim.masks.__name__)",
        silent=True,
    )
    assert shown == "False True kvreclaim.masks"


def test_an_absent_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'kvreclaim' has no attribute 'take_sensus'"):
        getattr(kvreclaim, "take_sensus")  # noqa: B009  # a type checker knows that it is absent
    assert not hasattr(kvreclaim, "nothing")


def test_measuring_loads_nothing_more() -> None:
    shown = fresh(
        "import sys; from kvreclaim import report; "
        "print(report([1, 0, 0, 0], 2).physical_reclaim, "
        f"[name for name in {HEAVY!r} if name in sys.modules])",
        silent=True,
    )
    assert shown == "0.5 []"


def test_third_party_modules_are_the_declared_ones() -> None:
    shown = fresh(
        "import json, sys; before = set(sys.modules); from kvreclaim import *; "
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(json.dumps(sorted(roots - set(sys.stdlib_module_names))))",
        silent=True,
    )
    assert set(json.loads(shown)) <= {"attr", "attrs", "kvreclaim", "numpy"}

"""Packages that may be absent: their tests are skipped then, but not in CI."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

import pytest

IN_CI = os.environ.get("CI") == "true" and sys.version_info[:2] == (3, 11)


def library(name: str) -> Any:  # noqa: ANN401  # a module
    """Return a package; where it is absent, the test is skipped, or in CI fails."""
    return importlib.import_module(name) if IN_CI else pytest.importorskip(name)


def noisy_library(name: str) -> Any:  # noqa: ANN401  # a module
    """Return a package that warns while it is imported, of its own or others' deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if IN_CI:
            return importlib.import_module(name)
        return pytest.importorskip(name, exc_type=ImportError)

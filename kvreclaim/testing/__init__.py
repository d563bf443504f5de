"""For test suites of eviction policies: assertions on keep-masks, and a battery for a policy.

An assertion that fails is an AssertionError which says what was measured, what was asked for and
under which pool, with a block map of the first table that fails. A wrong argument is a TypeError or
a ValueError, as everywhere. `kvreclaim.testing.strategies` has strategies for Hypothesis; nothing
else here needs it, or pytest.

>>> from kvreclaim.testing import assert_physical_reclaim
>>> assert_physical_reclaim([1, 1, 0, 0, 0, 0, 0, 1], 2, at_least=0.5)
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from kvreclaim.testing import strategies
    from kvreclaim.testing._assertions import (
        assert_block_coherent,
        assert_no_revival,
        assert_num_kept,
        assert_physical_reclaim,
        assert_reclaim_efficiency,
    )
    from kvreclaim.testing._battery import PolicyCheck, ReclaimAt, check_policy

__all__ = [
    "PolicyCheck",
    "ReclaimAt",
    "assert_block_coherent",
    "assert_no_revival",
    "assert_num_kept",
    "assert_physical_reclaim",
    "assert_reclaim_efficiency",
    "check_policy",
    "strategies",
]

# Imported when asked for: Hypothesis loads this package, for every project where it is installed.
_HOMES: typing.Final = {
    "PolicyCheck": "_battery",
    "ReclaimAt": "_battery",
    "assert_block_coherent": "_assertions",
    "assert_no_revival": "_assertions",
    "assert_num_kept": "_assertions",
    "assert_physical_reclaim": "_assertions",
    "assert_reclaim_efficiency": "_assertions",
    "check_policy": "_battery",
}


if not typing.TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif name == "strategies":
            value = importlib.import_module(f"{__name__}.strategies")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What Hypothesis calls when it is imported: `from_type` learns of BlockPool."""

from __future__ import annotations

import contextlib
import typing

if typing.TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from kvreclaim.pool import BlockPool


def register() -> None:
    """Register the strategy of BlockPool; no part of kvreclaim but the pool is imported.

    Called through the entry point `hypothesis` of the package.

    Examples
    --------
    >>> register()
    >>> from hypothesis import strategies
    >>> from kvreclaim import BlockPool
    >>> strategies.from_type(BlockPool).validate()
    """
    from hypothesis import strategies

    # Where numpy cannot be imported there is no BlockPool to ask for, and Hypothesis still works.
    with contextlib.suppress(ImportError):
        from kvreclaim.pool import BlockPool

        strategies.register_type_strategy(BlockPool, _pools)


def _pools(_: type[BlockPool]) -> SearchStrategy[BlockPool]:
    """Return the strategy once it is asked for."""
    from kvreclaim.testing.strategies import pools

    return pools()

"""Pictures of what is measured, drawn with matplotlib: the extra ``plot``.

A display is made by a ``from_...`` method, which computes, and drawn by ``plot``, which returns it
with what it drew on in ``ax_`` and ``figure_``. matplotlib is imported by ``plot`` alone. Given an
``ax``, nothing of pyplot is touched; its settings never are.
"""

from kvreclaim.plots._block_map import BlockMapDisplay, DrawnTable
from kvreclaim.plots._census import OccupancyDisplay, SavingsDisplay
from kvreclaim.plots._frontier import FrontierDisplay, PolicyPoint
from kvreclaim.plots._timeline import TimelineDisplay

__all__ = [
    "BlockMapDisplay",
    "DrawnTable",
    "FrontierDisplay",
    "OccupancyDisplay",
    "PolicyPoint",
    "SavingsDisplay",
    "TimelineDisplay",
]

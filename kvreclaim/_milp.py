"""The same problem as a mixed-integer program: slow, and exact within the solver's tolerances.

These are absolute: whatever is less than a millionth of the mean importance is 0 to the solver.

Minimise the sum of w_i * y_i over y in [0, 1] and x in {0, 1}, where the y sum to the budget, the x
to at least the number of blocks, and y_i >= x_b for every entry i of block b. Once x is chosen, the
cheapest entries are, so that no y needs to be an integer variable.
"""

from __future__ import annotations

import numpy as np

from kvreclaim._entries import Problem, Solution, fill_up, loss_of


def solve(problem: Problem, num_evicted: int, blocks: int) -> Solution:
    """Evict `num_evicted` entries, `blocks` whole blocks among them, at the least loss."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    num_entries, num_blocks = len(problem.weights), len(problem.starts)
    if not num_evicted:
        return Solution(np.zeros(num_entries, np.bool_), 0.0, 0.0, 0)
    may_go = np.isfinite(problem.weights)
    # The solver stops at an absolute gap: importances of mean 1 keep that gap small.
    scale = problem.total / problem.num_finite or 1.0
    inside = np.flatnonzero(problem.buyable[problem.block])
    ones, rows = np.ones(len(inside)), np.arange(len(inside))
    whole = coo_array(
        (
            np.concatenate([ones, -ones]),
            (np.tile(rows, 2), np.concatenate([inside, num_entries + problem.block[inside]])),
        ),
        shape=(len(inside), num_entries + num_blocks),
    )
    entries, bought = np.zeros((2, num_entries + num_blocks))
    entries[:num_entries] = bought[num_entries:] = 1.0
    with np.errstate(under="ignore"):  # so small an importance is none to the solver
        costs = np.where(may_go, problem.weights / scale, 0.0)
    result = milp(
        np.concatenate([costs, np.zeros(num_blocks)]),
        integrality=bought.astype(np.int8),
        bounds=Bounds(0, np.concatenate([may_go, problem.buyable]).astype(np.float64)),
        constraints=[
            LinearConstraint(whole.tocsr(), 0, np.inf),
            LinearConstraint(entries, num_evicted, num_evicted),
            LinearConstraint(bought, blocks, np.inf),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None or result.status != 0:
        raise RuntimeError(
            "method='milp' must end with a proof; the solver stopped without one "
            f"({result.message}); write method='dual'."
        )
    evicted = fill_up(problem, result.x[num_entries:] > 1 / 2, num_evicted)
    loss = loss_of(problem, evicted)
    return Solution(evicted, loss, min(loss, float(result.mip_dual_bound) * scale), 0)

"""Importance scores: each has the distribution and the geometry that its docstring claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.stats.distributions import rv_frozen

from kvreclaim import importance, moved_tokens_per_block, physical_reclaim, slots_per_move

BLOCK = 16
Z = 4.0  # standard errors: a right generator fails a fixed seed once in 16,000


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def lowest_half(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the keep-mask that evicts the half of each row with the lowest scores."""
    order = scores.argsort(axis=-1)
    keep = np.ones(scores.shape, bool)
    np.put_along_axis(keep, order[..., : scores.shape[-1] // 2], values=False, axis=-1)
    return keep


def z_of_mean(samples: NDArray[np.float64], expected: float) -> float:
    return float((samples.mean() - expected) / (samples.std(ddof=1) / math.sqrt(samples.size)))


GENERATORS: dict[str, tuple[Callable[..., NDArray[np.float64]], dict[str, Any]]] = {
    "lognormal": (importance.lognormal, {}),
    "uniform": (importance.uniform, {}),
    "exponential": (importance.exponential, {}),
    "pareto": (importance.pareto, {}),
    "two_level": (importance.two_level, {}),
    "smooth_field": (importance.smooth_field, {"rho": 0.5}),
}
each_generator = pytest.mark.parametrize(
    ("generate", "said"), GENERATORS.values(), ids=list(GENERATORS)
)


@each_generator
@pytest.mark.parametrize("shape", [0, 1, 33, (5,), (2, 3, 40), (0, 16), (2, 0)])
def test_shape_type_and_sign(
    generate: Callable[..., NDArray[np.float64]], said: dict[str, Any], shape: int | tuple[int, ...]
) -> None:
    scores = generate(shape, **said, rng=rng())
    assert scores.shape == ((shape,) if isinstance(shape, int) else shape)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


@each_generator
def test_a_seed_decides_everything_and_rows_differ(
    generate: Callable[..., NDArray[np.float64]], said: dict[str, Any]
) -> None:
    scores = generate((2, 200), **said, rng=rng(1))
    assert np.array_equal(scores, generate((2, 200), **said, rng=rng(1)))
    assert not np.array_equal(scores, generate((2, 200), **said, rng=rng(2)))
    assert not np.array_equal(scores[0], scores[1])


@pytest.mark.parametrize(
    ("generate", "said", "law"),
    [
        (importance.lognormal, {}, stats.lognorm(1)),
        (importance.lognormal, {"sigma": 2.0}, stats.lognorm(2)),
        (importance.uniform, {}, stats.uniform()),
        (importance.exponential, {}, stats.expon()),
        (importance.pareto, {}, stats.pareto(1.5)),
        (importance.pareto, {"alpha": 3.0}, stats.pareto(3)),
        (importance.smooth_field, {"rho": 0.0}, stats.lognorm(1)),
        (importance.smooth_field, {"rho": 0.3, "scale": 0.1}, stats.lognorm(1)),
        (importance.smooth_field, {"rho": 0.3, "scale": 0.1, "sigma": 0.5}, stats.lognorm(0.5)),
    ],
)
def test_single_scores_follow_their_law(
    generate: Callable[..., NDArray[np.float64]], said: dict[str, Any], law: rv_frozen
) -> None:
    # A smoothing of a tenth of a token leaves neighbours independent, as the test supposes.
    assert stats.kstest(law.cdf(generate(20_000, **said, rng=rng())), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_a_score_of_a_smooth_field_is_lognormal_whatever_the_correlation(rho: float) -> None:
    first = importance.smooth_field((4_000, 256), rho, sigma=2.0, rng=rng())[:, 0]  # a row is new
    assert stats.kstest(first, stats.lognorm(2).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("generate", "loss"),
    [
        (importance.lognormal, float(stats.norm.cdf(-1))),
        (importance.uniform, 1 / 4),
        (importance.exponential, 1 / 2 + math.log(1 / 2) / 2),
        (lambda shape, rng: importance.pareto(shape, 4.0, rng=rng), 1 - 0.5 ** (3 / 4)),
    ],
)
def test_lowest_half_loses_the_share_of_its_formula(
    generate: Callable[..., NDArray[np.float64]], loss: float
) -> None:
    scores = generate((200, 4096), rng=rng())
    lost = np.where(lowest_half(scores), 0.0, scores).sum(-1)
    # A ratio of means: by row, its linearised deviations have mean 0 if the formula holds.
    assert abs(z_of_mean(lost - loss * scores.sum(-1), 0.0)) < Z


def test_two_level_runs_have_the_shares_of_their_level() -> None:
    low = importance.two_level((500, 320), run=16, share=0.8, rng=rng()) <= 1
    counts = low.reshape(500, 20, 16).sum(-1)
    law = stats.binom.pmf(np.arange(17), 16, 0.8) + stats.binom.pmf(np.arange(17), 16, 0.2)
    seen = np.bincount(counts.ravel(), minlength=17)
    assert stats.chisquare(seen, law / 2 * counts.size).pvalue > 1e-4
    # Exactly half of the runs are cold, so the number of low tokens varies less than at random.
    clean = importance.two_level((500, 320), run=16, share=1.0, rng=rng()) <= 1
    assert (clean.sum(-1) == 160).all()
    assert np.isin(clean.reshape(500, 20, 16).sum(-1), [0, 16]).all()


def test_two_level_of_an_odd_number_of_runs_is_cut_at_the_end() -> None:
    clean = importance.two_level((100, 40), run=16, share=1.0, rng=rng()) <= 1
    assert set(clean.sum(-1).tolist()) == {8, 16}  # one cold run of three, the last of 8 tokens


def test_two_level_gives_compaction_the_slots_of_its_formula() -> None:
    p = 0.9
    low = importance.two_level((60, 8192), run=BLOCK, share=p, rng=rng()) <= 1
    per_move = np.array([slots_per_move(~row, BLOCK) for row in low])
    # In the limit of many blocks; 512 leave a bias of about a quarter of a per cent.
    expected = (1 - p**BLOCK) / (1 - p)
    assert abs(per_move.mean() / expected - 1) < 0.01


def test_smooth_field_is_scatter_at_0_and_runs_at_1() -> None:
    tokens = 512 * BLOCK
    freed = {
        rho: np.array(
            [
                physical_reclaim(lowest_half(row), BLOCK)
                for row in importance.smooth_field((30, tokens), rho, rng=rng())
            ]
        )
        for rho in (0.0, 0.5, 1.0)
    }
    assert freed[0.0].max() <= 2 / 512  # 0.5^16 of 512 blocks is one in 128 masks
    assert 0.0 < freed[0.5].mean() < freed[1.0].mean()
    # A dead run of l tokens frees (l - 15) / 16 blocks on average, wherever the borders fall.
    run = math.pi * math.sqrt(2) * 48
    assert abs(z_of_mean(freed[1.0], 0.5 * (1 - (BLOCK - 1) / run))) < Z


@pytest.mark.parametrize("scale", [10.0, 48.0])
def test_dead_runs_of_a_smooth_field_have_the_length_of_rice(scale: float) -> None:
    dead = importance.smooth_field((300, 4096), 1.0, scale=scale, rng=rng()) < 1  # below the median
    starts = (dead & ~np.roll(dead, 1, axis=-1)).sum(-1)  # around the ring
    # Sampled at whole tokens, P(sign changes) = arccos(r) / pi, r the correlation of neighbours.
    neighbours = math.exp(-1 / (4 * scale**2))
    per_row = 4096 * math.acos(neighbours) / math.pi / 2
    assert abs(z_of_mean(starts.astype(float), per_row)) < Z
    assert math.isclose(2 * per_row, 4096 / (math.pi * math.sqrt(2) * scale), rel_tol=1e-3)


def test_coherent_scores_need_no_compaction() -> None:
    clean = importance.two_level(4096, run=BLOCK, share=1.0, rng=rng())
    keep = lowest_half(clean)
    assert physical_reclaim(keep, BLOCK) == 0.5
    assert math.isnan(moved_tokens_per_block(keep, BLOCK))


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 9.0, 11.0, 40.0, 1e9, 1e300])
def test_a_smooth_field_has_variance_one_whatever_its_scale(scale: float) -> None:
    field = np.log(importance.smooth_field((20_000, 40), 1.0, scale=scale, rng=rng()))
    for token in (0, 17, 39):  # rows are independent; the variance of a normal's square is 2
        assert abs((np.square(field[:, token]).mean() - 1) * math.sqrt(20_000 / 2)) < Z
    neighbours = (field[:, 3] * field[:, 4]).mean()
    if scale <= 1e-3:
        assert abs(neighbours) < 0.05
    elif scale == 1.0:
        assert abs(neighbours - math.exp(-1 / 4)) < 0.05
    else:
        assert neighbours > 0.9
    assert (np.ptp(field, axis=-1) == 0).all() == (scale >= 1e9)


@pytest.mark.parametrize("tokens", [1, 2, 7, 40, 41])
@pytest.mark.parametrize("scale", [0.3, 0.6, 3.0, 11.0, 25.0, 300.0])
def test_a_field_that_goes_around_the_ring_is_wound_around_it(tokens: int, scale: float) -> None:
    if 4 * scale < tokens:
        return
    scores = importance.smooth_field((3, tokens), 1.0, scale=scale, rng=rng())
    rough = rng().standard_normal((2, 3, tokens))[1]
    distance = np.subtract.outer(np.arange(tokens), np.arange(tokens))
    around = np.arange(-5_000, 5_001)[:, None, None] * tokens
    wound = np.exp(-(((distance + around) / scale) ** 2) / 2).sum(axis=0)
    field = rough @ (wound / np.sqrt(np.square(wound[0]).sum()))
    assert np.allclose(np.log(scores), field, rtol=0, atol=1e-9)


def test_a_run_beyond_the_tokens_is_one_of_all() -> None:
    whole = importance.two_level((2, 10), 10, rng=rng())
    for run in (11, 10**9, 2**63):
        assert np.array_equal(importance.two_level((2, 10), run, rng=rng()), whole)
    assert (importance.two_level((2, 10), 2**63, share=1.0, rng=rng()) > 1).all()


@pytest.mark.parametrize(
    ("generate", "said"),
    [
        (importance.lognormal, {"sigma": 50.0}),
        (importance.pareto, {"alpha": 0.1}),
        (importance.smooth_field, {"rho": 0.5, "sigma": 50.0}),
    ],
)
def test_the_heaviest_tails_stay_within_what_policies_take(
    generate: Callable[..., NDArray[np.float64]], said: dict[str, Any]
) -> None:
    scores = generate(100_000, **said, rng=rng())
    assert (scores > 0).all()
    assert 1e50 < scores.max() < 1e300


wrong: Any = importance  # what a type checker would refuse


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda r: wrong.lognormal(-1, rng=r), ValueError, "num_tokens must be .* at least 0"),
        (lambda r: wrong.lognormal(2.5, rng=r), TypeError, "num_tokens must be an integer"),
        (lambda r: wrong.lognormal((), rng=r), ValueError, "num_tokens must be .* a shape"),
        (lambda r: wrong.uniform((2, -1), rng=r), ValueError, r"num_tokens\[1\] must be"),
        (lambda r: wrong.lognormal(4, 0.0, rng=r), ValueError, "sigma must be a finite"),
        (lambda r: wrong.lognormal(4, math.nan, rng=r), ValueError, "sigma must be a finite"),
        (
            lambda r: wrong.lognormal(8, 1e3, rng=r),
            ValueError,
            "sigma must be at most 50.0, so that .* range of a float; got 1000.0; write less",
        ),
        (lambda r: wrong.smooth_field(8, 1, sigma=1e4, rng=r), ValueError, "sigma must be at most"),
        (
            lambda r: wrong.pareto(8, 1e-3, rng=r),
            ValueError,
            "alpha must be at least 0.1, so that .* range of a float; got 0.001; write more",
        ),
        (lambda r: wrong.uniform(2**70, rng=r), ValueError, "num_tokens must be .* from 0 to 1099"),
        (lambda r: wrong.uniform((1,) * 65, rng=r), ValueError, "at most 32 axes; got 65"),
        (lambda r: wrong.smooth_field((2**30, 2**30), 1, rng=r), ValueError, r"at most 2\*\*40"),
        (lambda r: wrong.pareto(4, -1.0, rng=r), ValueError, "alpha must be a finite"),
        (lambda r: wrong.two_level(4, 0, rng=r), ValueError, "run must be .* at least 1"),
        (lambda r: wrong.two_level(4, share=90, rng=r), ValueError, "share .* not a percent"),
        (lambda r: wrong.smooth_field(4, 1.1, rng=r), ValueError, "rho must be a number from"),
        (lambda r: wrong.smooth_field(4, math.nan, rng=r), ValueError, "rho must be"),
        (lambda r: wrong.smooth_field(4, "1", rng=r), TypeError, "rho must be"),
        (lambda r: wrong.smooth_field(4, True, rng=r), TypeError, "rho must be"),
        (lambda r: wrong.smooth_field(4, 1, scale=0, rng=r), ValueError, "scale must be"),
        (lambda _: wrong.uniform(4, rng=0), TypeError, r"write numpy\.random\.default_rng"),
        (lambda _: wrong.exponential(4, rng=None), TypeError, "rng must be"),
    ],
)
def test_bad_input_is_told_what_is_wrong(
    call: Callable[[Any], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(rng())

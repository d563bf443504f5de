"""A small study of made-up rows: every kind of chart, awkward names, figures without a value."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.study.results import Chart, Line, Row, Study

NASTY = """</script><b class="x">A & B's $x^2$</b> %{y}"""


def row(key: str, x: float | str, mean: float, **fields: Any) -> Row:  # noqa: ANN401  # of a Row
    values: dict[str, Any] = {
        "section": "First",
        "series": key.split("/")[1],
        "setting": "B = 16, half kept",
        "metric": "physical reclaim",
        "sd": mean / 7,
        "low": mean - mean / 11,
        "high": mean + mean / 9,
        "n": 30,
        "interval": "t",
        "verdict": "beyond the article",
    }
    return Row(key=key, x=x, mean=mean, **(values | fields))


def fixed(key: str, x: float | str, mean: float, **fields: Any) -> Row:  # noqa: ANN401
    values: dict[str, Any] = {"sd": 0.0, "low": mean, "high": mean, "n": 1, "interval": "exact"}
    return row(key, x, mean, **(values | fields))


def lines(rows: list[Row], *, dashed: tuple[str, ...] = ()) -> tuple[Line, ...]:
    names = dict.fromkeys(one.series for one in rows)
    return tuple(
        Line(
            name=name,
            keys=tuple(one.key for one in rows if one.series == name),
            dashed=name in dashed,
        )
        for name in names
    )


def study() -> Study:
    sizes = (4, 8, 16, 32, 64)
    curves = [
        *(row(f"line/StreamingLLM/{b}", b, 0.5 - b / 700, article="0.47 ± 0.02") for b in sizes),
        *(row(f"line/H2O/{b}", b, 0.75 ** (b - 1) / 3 if b < 32 else 0.0) for b in sizes),
        *(fixed(f"line/q^B/{b}", b, 0.5**b, closed_form=0.5**b, law="q^B") for b in sizes),
    ]
    bars = {
        choice: [
            *(
                row(f"{choice}/in place/{server}", server, share / (2 + number), section="Second")
                for number, server in enumerate(("vllm", "sglang", "tensorrt_llm"))
            ),
            *(
                fixed(f"{choice}/packed/{server}", server, share, section="Second")
                for server in ("vllm", "sglang", "tensorrt_llm")
            ),
        ]
        for choice, share in (("lognormal", 1 / 3), ("uniform & <flat>", 0.7))
    }
    points = [
        row(f"points/{name}/{at}", 0.1 * at + 0.05, 0.15 + at * at / 31, section="Second")
        for name, places in (("random", [1]), ("whole blocks", [4]), ("frontier", [0, 1, 2, 3, 4]))
        for at in places
    ]
    odd = [
        row(
            f"odd/{NASTY}/{at}",
            NASTY if at else "plain",
            10.0**at,
            series=NASTY,
            section="Second",
            article="<1",
        )
        for at in range(2)
    ]
    loose = [
        row("loose/alone", "-", 1234.56789, section="Second", sd=math.nan, low=math.nan, high=5e-7)
    ]
    charts = (
        Chart(
            key="line",
            section="First",
            title="Reclaim over block size",
            caption="A window keeps its share; scatter loses it.",
            x_title="block size (tokens)",
            y_title="physical reclaim (share of blocks)",
            kind="line",
            lines=lines(curves, dashed=("q^B",)),
            log_x=False,
            log_y=True,
        ),
        Chart(
            key="bars",
            section="Second",
            title="In place against packed",
            caption="What a copy adds.",
            x_title="runtime",
            y_title="share of blocks",
            kind="bar",
            lines=tuple(line for some in bars.values() for line in lines(some)),
            choices=tuple(bars),
            choice_of=tuple(choice for choice, some in bars.items() for _ in lines(some)),
            selector="Importance",
            log_y=False,
        ),
        Chart(
            key="points",
            section="Second",
            title="Loss over reclaim",
            caption="None lies below the frontier.",
            x_title="physical reclaim",
            y_title="share of importance lost",
            kind="scatter",
            lines=lines(points, dashed=("frontier",)),
        ),
        Chart(
            key="odd",
            section="Second",
            title=f"Odd: {NASTY}",
            caption=f"Odd: {NASTY}",
            x_title=NASTY,
            y_title=NASTY,
            kind="bar",
            lines=lines(odd),
        ),
    )
    return Study(
        rows=(*curves, *(one for some in bars.values() for one in some), *points, *odd, *loose),
        charts=charts,
        sections=(("First", "What blocks do.\n\nA second paragraph."), ("Second", NASTY)),
        replications=30,
        version="0.0.0",
    )

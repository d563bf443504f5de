"""Tables of what quality costs: at one half, at matched quality, document by document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.evidence import matched
from benchmarks.evidence.cells import LAYOUTS, NAMES, interval, model_name, pair, plain, share_of
from benchmarks.evidence.found import HALF, Evidence, by_document, over_documents
from benchmarks.evidence.matched import INCREASE
from benchmarks.evidence.tables import Context
from benchmarks.pages import Table
from kvreclaim.statistics import Summary, summarize

RIVAL: Final = "whole_block_all"
MEASURES: Final = {"loss": "loss", "kl": "KL"}
_NO_MOST: Final = 1e9  # nats


def headline(evidence: Evidence) -> tuple[Table, ...]:
    """Return what each policy costs and frees at one half."""
    return tuple(_headline(evidence, model) for model in evidence.models)


def _headline(evidence: Evidence, model: str) -> Table:
    half = [row for row in evidence.quality if row.model == model and row.ratio == HALF]
    policies = evidence.policies(model)
    of_one = [row for row in half if row.policy == policies[0]]
    full = share_of((row.probes_right_full, row.probes) for row in of_one)
    nothing = [pair(0.0, 0.0)] * len(LAYOUTS)
    rows = [("whole cache", "1.000", "0", "0", full, *nothing, "0", "0")]
    for policy in policies:
        at_half = {
            name: evidence.at(model, policy, HALF, name) for name in evidence.names(model, policy)
        }
        rows.append(
            (
                NAMES[policy],
                plain(over_documents(at_half["retained"])),
                interval(_summary(at_half["kl"], least=0.0)),
                interval(_summary(at_half["loss"]), signed=True),
                share_of((row.probes_right, row.probes) for row in half if row.policy == policy),
                *(
                    pair(
                        *(over_documents(at_half[f"{way} {one}"]) for way in ("in place", "packed"))
                    )
                    for one in LAYOUTS
                ),
                plain(over_documents(at_half["fewest all"])),
                plain(over_documents(at_half["in order all"])),
            )
        )
    return Table(
        title=f"One half retained, {model_name(model)}",
        text=(
            f"{_documents(evidence, model)}. KL and loss in nats over the 128 tokens that follow, "
            "against the whole cache, with the 95 % interval of the mean over documents. Keys: the "
            "planted ones that greedy decoding still finds, over all contexts. Reclaim in place / "
            "packed, B = 16. Copy: decode steps to pack every row, with the fewest moves and in "
            "order, where one table is for all."
        ),
        header=(
            "policy",
            "retained",
            "KL",
            "loss",
            "keys",
            *LAYOUTS.values(),
            "copy, fewest",
            "copy, in order",
        ),
        rows=tuple(rows),
    )


def _summary(values: Mapping[Context, float], least: float | None = None) -> Summary:
    """Return the mean over documents with its interval, which a least value cuts off."""
    some = list(by_document(values).values())
    return summarize(some, bounds=None if least is None else (min(least, *some), _NO_MOST))


def _documents(evidence: Evidence, model: str) -> str:
    contexts = evidence.contexts(model)
    documents = len({context.document for context in contexts})
    return f"{len(contexts)} contexts of {documents} documents, means over documents"


def at_matched_quality(
    evidence: Evidence, *, rival: str = RIVAL, limit: float = INCREASE
) -> tuple[Table, ...]:
    """Return what each policy frees where it costs as much as the others.

    Parameters
    ----------
    evidence
        What was measured.
    rival
        The policy from which distances are taken.
    limit
        What each may cost, in nats.
    """
    return tuple(
        table
        for model in evidence.models
        for table in (
            *(
                table
                for measure in MEASURES
                for table in _matched(evidence, model, measure, rival, limit)
            ),
            _pooled(evidence, model, limit),
        )
    )


def _matched(
    evidence: Evidence, model: str, measure: str, rival: str, limit: float
) -> tuple[Table, Table]:
    policies = evidence.policies(model)
    curves = {policy: matched.curves_of(evidence.points[model, policy]) for policy in policies}
    compared = matched.compared(curves, measure, limit, rival)
    where = f"{MEASURES[measure]} +{limit:g} nats, {model_name(model)}"
    rows, differences = [], []
    for policy, one in compared.items():
        mean = {name: summary.mean for name, summary in one.figures.items()}
        rows.append(
            (
                NAMES[policy],
                interval(one.figures["retained"]),
                f"{one.num_not_reached} of {len(one.documents)}",
                interval(one.figures["in place all"]),
                interval(one.figures["packed all"]),
                *(
                    pair(mean[f"in place {two}"], mean[f"packed {two}"])
                    for two in ("head", "layer")
                ),
                plain(mean["found"]) if "found" in mean else "",
                plain(mean["fewest all"]),
                plain(mean["in order all"]),
            )
        )
        if policy != rival and one.differences:
            names = ("retained", "in place all", "packed all")
            differences.append(
                (NAMES[policy], *(interval(one.differences[name], signed=True) for name in names))
            )
    first = Table(
        title=f"At {where}",
        text=(
            "The share that each policy retains where it costs that much, document by document, on "
            "a straight line between measured shares; means over documents with 95 % intervals "
            "(none where all documents are alike). Not reached: documents in which even the lowest "
            "share that was measured costs less; there that share counts. Reclaim of one table for "
            "all, then in place / packed of the others, B = 16; keys found, a share; copy in "
            "decode steps, one table for all."
        ),
        header=(
            "policy",
            "retained",
            "not reached",
            "in place",
            "packed",
            LAYOUTS["head"],
            LAYOUTS["layer"],
            "keys",
            "copy, fewest",
            "copy, in order",
        ),
        rows=tuple(rows),
    )
    second = Table(
        title=f"Distance from {NAMES[rival]}, at {where}",
        text=(
            "The policy's figure less the other's on the same document: paired, with 95 % "
            "intervals. One table for all."
        ),
        header=("policy", "retained", "in place", "packed"),
        rows=tuple(differences),
    )
    return first, second


def _pooled(evidence: Evidence, model: str, limit: float) -> Table:
    rows = []
    for policy in evidence.policies(model):
        curves = matched.curves_of(evidence.points[model, policy])
        cells = []
        for measure in MEASURES:
            figures, reached = matched.pooled(curves, measure, limit)
            cells += [
                f"{'' if reached else 'at most '}{plain(figures['retained'])}",
                pair(figures["in place all"], figures["packed all"]),
            ]
        rows.append((NAMES[policy], *cells))
    return Table(
        title=f"At +{limit:g} nats of the mean curve, {model_name(model)}",
        text=(
            "The same where the mean over documents costs that much, which single documents weigh "
            "on by how much they lose. *At most*: the mean never costs so much. Reclaim in place / "
            "packed, one table for all, B = 16."
        ),
        header=("policy", "retained, loss", "reclaim, loss", "retained, KL", "reclaim, KL"),
        rows=tuple(rows),
    )


def documents(evidence: Evidence) -> tuple[Table, ...]:
    """Return every context by itself."""
    return tuple(table for model in evidence.models for table in _by_context(evidence, model))


def _by_context(evidence: Evidence, model: str) -> tuple[Table, ...]:
    contexts = evidence.contexts(model)
    header = ("policy", *(f"{context.document}, {context.tokens:,}" for context in contexts))
    half = {
        policy: {
            name: evidence.at(model, policy, HALF, name) for name in evidence.names(model, policy)
        }
        for policy in evidence.policies(model)
    }

    def table(title: str, text: str, *names: str, signed: bool = False) -> Table:
        return Table(
            title=f"{title}, context by context, {model_name(model)}",
            text=text,
            header=header,
            rows=tuple(
                (
                    NAMES[policy],
                    *(_cell(figures, names, context, signed=signed) for context in contexts),
                )
                for policy, figures in half.items()
            ),
        )

    return (
        table("Loss", "Increase in nats, one half retained.", "loss", signed=True),
        table("KL", "Nats, one half retained.", "kl"),
        table(
            "Reclaim",
            "In place / packed, one table for all, B = 16, one half retained.",
            "in place all",
            "packed all",
        ),
    )


def _cell(
    figures: dict[str, dict[Context, float]],
    names: tuple[str, ...],
    context: Context,
    *,
    signed: bool,
) -> str:
    values = [figures[name][context] for name in names if context in figures[name]]
    return " / ".join(f"{value:{'+' if signed else ''}z.3f}" for value in values)

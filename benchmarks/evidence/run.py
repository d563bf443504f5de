"""One context after the other: read it, let every policy choose, and write what that costs."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.evidence import allocator, checks, keeps, masks, models, prompts, quality, texts
from benchmarks.evidence.counts import reclaim_rows
from benchmarks.evidence.settings import (
    BLOCK_SIZE,
    BLOCK_SIZES,
    FULL_RATIOS,
    POLICIES,
    RATIOS,
    SNAPKV_KERNEL,
    SNAPKV_WINDOW,
)
from benchmarks.evidence.tables import Context, QualityRow, ReclaimRow, from_csv, to_csv
from benchmarks.pages import write_text

FOLLOWING: Final = 128  # tokens whose loss is taken
CONTEXTS: Final = (
    Context("smollm2-135m", "rust-book", 2048),
    Context("smollm2-135m", "python-reference", 2048),
    Context("smollm2-135m", "argparse", 2048),
    Context("smollm2-135m", "gpl-3", 2048),
    Context("smollm2-135m", "python-history", 2048),
    Context("smollm2-135m", "kvreclaim", 2048),
    Context("smollm2-135m", "numpy", 1024),
    Context("smollm2-135m", "rustonomicon", 4096),
    Context("smollm2-135m", "python-reference", 4096),
    Context("smollm2-135m", "rust-book", 8050),
    Context("gemma3-270m", "rust-book", 2048),
    Context("gemma3-270m", "python-reference", 2048),
    Context("gemma3-270m", "argparse", 2048),
    Context("gemma3-270m", "gpl-3", 2048),
    Context("gemma3-270m", "kvreclaim", 2048),
    Context("gemma3-270m", "rustonomicon", 4096),
)


class Plan(NamedTuple):
    """What is run."""

    contexts: tuple[Context, ...]
    policies: tuple[str, ...]
    ratios: tuple[float, ...]


FULL: Final = Plan(CONTEXTS, POLICIES, RATIOS)
QUICK: Final = Plan(CONTEXTS[6:7], ("streaming_llm", "snapkv", "whole_block_all"), FULL_RATIOS)


def run(plan: Plan, folder: Path, tell: Callable[[str, int, int], None]) -> None:
    """Measure each context that has no part yet; `tell` gets its name, masks done, and all."""
    loaded: dict[str, models.Model] = {}
    for context in plan.contexts:
        if (folder / f"{context.stem}.json").exists():
            continue
        if context.model not in loaded:
            loaded = {context.model: models.load(context.model, folder)}  # one at a time
        _measure(plan, context, loaded[context.model], folder, tell)


def _measure(
    plan: Plan,
    context: Context,
    model: models.Model,
    folder: Path,
    tell: Callable[[str, int, int], None],
) -> None:
    start = time.perf_counter()
    tell(context.stem, 0, len(plan.policies) * len(plan.ratios))
    prompt = prompts.read(model, context.document, context.tokens, FOLLOWING + 1)
    choose = keeps.chooser(model, prompt)
    shape = (len(model.layers), model.kv_heads, context.tokens)
    full = quality.ask(model, prompt, np.ones(shape, np.bool_))
    empty = quality.ask(model, prompt, np.zeros(shape, np.bool_))
    rows: list[QualityRow] = []
    chosen: dict[tuple[str, float], masks.Mask] = {}
    for policy in plan.policies:
        for ratio in plan.ratios:
            keep = choose(policy, ratio)
            now = quality.against(full, quality.ask(model, prompt, keep))
            rows.append(
                QualityRow(
                    **context._asdict(),
                    policy=policy,
                    ratio=ratio,
                    retained=float(keep.mean()),
                    loss_full=full.loss,
                    loss_empty=empty.loss,
                    loss=now.loss,
                    kl=now.kl,
                    top1=now.top1,
                    probe_loss_full=full.probe_loss,
                    probe_loss=now.probe_loss,
                    probes=len(prompt.questions),
                    probes_right_full=full.found,
                    probes_right=now.found,
                )
            )
            chosen[policy, ratio] = keep
            tell(context.stem, len(rows), len(plan.policies) * len(plan.ratios))
    masks.save(folder / f"{context.stem}.npz", chosen, model.layers)
    text = texts.TEXTS[context.document]
    source = models.SOURCES[context.model]
    about = {
        "seconds": round(time.perf_counter() - start),
        "versions": versions(),
        "text": {"source": text.source, "licence": text.licence, "sha256": prompt.sha256},
        "model": {
            "package": f"{source.package}=={source.release}",
            "licence": source.licence,
            "sha256": model.sha256,
            "layers": list(model.layers),
            "kv_heads": model.kv_heads,
        },
        "probes_found_in_nothing": empty.found,
        "checks": checks.agreement(model, prompt),
    }
    part = {"quality": to_csv(rows), "about": about}
    write_text(folder / f"{context.stem}.json", json.dumps(part, indent=1))


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on."""
    names = ("torch", "transformers", "kvpress", "numpy", "tokenizers", "gguf")
    found = {name: importlib.metadata.version(name) for name in names if find_spec(name)}
    return {"python": platform.python_version(), **found}


def collect(plan: Plan, parts: Path, folder: Path) -> None:
    """Make the committed tables, masks and manifest of the parts of every context."""
    rows: list[QualityRow] = []
    reclaim: list[ReclaimRow] = []
    about = {}
    for context in plan.contexts:
        part = json.loads((parts / f"{context.stem}.json").read_text("utf-8"))
        rows += from_csv(QualityRow, part["quality"], name=context.stem)
        about[context.stem] = part["about"]
        chosen = masks.load(parts / f"{context.stem}.npz")
        for (policy, ratio), keep in chosen.items():
            sizes = BLOCK_SIZES if ratio in FULL_RATIOS else (BLOCK_SIZE,)
            reclaim += reclaim_rows(context, policy, ratio, keep, sizes)
        stored = {name: keep for name, keep in chosen.items() if name[1] in FULL_RATIOS}
        layers = masks.load_layers(parts / f"{context.stem}.npz")
        masks.save(folder / "masks" / f"{context.stem}.npz", stored, layers)
    write_text(folder / "quality.csv", to_csv(rows))
    write_text(folder / "reclaim.csv", to_csv(reclaim))
    manifest = {
        "following_tokens": FOLLOWING,
        "planted_at": list(texts.DEPTHS),
        "snapkv_window": SNAPKV_WINDOW,
        "snapkv_kernel": SNAPKV_KERNEL,
        "seed_of_random": keeps.SEED,
        "contexts": about,
    }
    server = allocator.real_vllm()
    if server is not None:  # else what stands in the folder is checked by a test
        admitted = [
            row
            for model, chosen in masks.load_models(folder / "masks").items()
            for row in allocator.admission_rows(model, chosen, BLOCK_SIZES, server)
        ]
        write_text(folder / "admission.csv", to_csv(admitted))
    write_text(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")

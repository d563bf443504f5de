"""Tensors of other libraries, none of which is imported: a value, or one clear sentence.

Real torch and jax where they are installed. In CI on Python 3.11 they must be, everywhere else
their tests skip where they are not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from optional import library

from kvreclaim import BlockPool, _checks, masks, take_census

KEEP = np.array([[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1]], bool)
Make = Callable[[Any], Any]  # from a library, what to try

# torch says of its sparse and nested tensors that they may change.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def torch() -> Any:  # noqa: ANN401  # a module
    return library("torch")


@pytest.fixture(scope="module")
def jax() -> Any:  # noqa: ANN401  # a module
    return library("jax")


def refused(call: Callable[[], object], *words: str, name: str = "keep") -> str:
    """Check that a call raises a TypeError of one sentence that holds these words."""
    with pytest.raises(TypeError) as info:
        call()
    message = str(info.value)
    assert info.type is TypeError
    assert message.startswith(f"{name} must "), message
    assert "; got " in message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


# --- torch ---

TORCH = {
    "bool": lambda torch: torch.tensor(KEEP),
    "uint8": lambda torch: torch.tensor(KEEP.astype("u1")),
    "int8": lambda torch: torch.tensor(KEEP).to(torch.int8),
    "int32": lambda torch: torch.tensor(KEEP).int(),
    "int64": lambda torch: torch.tensor(KEEP).long(),
    "uint16": lambda torch: torch.tensor(KEEP).to(torch.uint16),
    "transposed": lambda torch: torch.tensor(KEEP.T.copy()).T,
    "strided": lambda torch: torch.tensor(np.repeat(KEEP, 2, axis=1))[:, ::2],
    "a parameter": lambda torch: torch.nn.Parameter(torch.tensor(KEEP), requires_grad=False),
    "a subclass": lambda torch: torch.tensor(KEEP).as_subclass(type("T", (torch.Tensor,), {})),
    "sparse": lambda torch: torch.tensor(KEEP).to_sparse(),
    "sparse uint8": lambda torch: torch.tensor(KEEP.astype("u1")).to_sparse(),
    "sparse rows": lambda torch: torch.tensor(KEEP).to_sparse_csr(),
    "sparse columns": lambda torch: torch.tensor(KEEP).int().to_sparse_csc(),
    "sparse blocks": lambda torch: torch.tensor(KEEP).to_sparse_bsr((1, 2)),
    "a list": lambda torch: list(torch.tensor(KEEP)),
    "a list of sparse": lambda torch: [torch.tensor(row).to_sparse() for row in KEEP],
    "a tuple of lists": lambda torch: tuple(list(row) for row in torch.tensor(KEEP)),
}


@pytest.mark.parametrize("make", TORCH.values(), ids=TORCH)
def test_a_torch_mask_is_the_numpy_mask(torch: Any, make: Make) -> None:  # noqa: ANN401
    tensor = make(torch)
    assert take_census(tensor, 2, axes="ht") == take_census(KEEP, 2, axes="ht")
    assert _checks.as_keep(tensor).tolist() == KEEP.tolist()


def test_a_torch_mask_is_not_copied_where_numpy_can_see_it(torch: Any) -> None:  # noqa: ANN401
    tensor = torch.tensor(KEEP)
    array = _checks.as_keep(tensor)
    assert np.shares_memory(array, tensor.numpy())


TORCH_REFUSED = {
    "float32": (lambda torch: torch.tensor([1.0, 0.0]), "float32", "keep == 1"),
    "float16": (lambda torch: torch.tensor([1.0, 0.0]).half(), "float16"),
    "bfloat16": (lambda torch: torch.tensor([1.0, 0.0]).bfloat16(), "bfloat16", "keep == 1"),
    "float8": (lambda torch: torch.tensor([1.0]).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "bfloat16, additive": (
        lambda torch: torch.tensor([0.0, -torch.inf]).bfloat16(),
        "bfloat16",
        "additive",
        "from_additive(keep)",
    ),
    "bfloat16, NaN": (lambda torch: torch.tensor([0.0, torch.nan]).bfloat16(), "bfloat16", "1 NaN"),
    "requires_grad": (lambda torch: torch.tensor([1.0, 0.0], requires_grad=True), "float32"),
    "bfloat16 that requires_grad": (
        lambda torch: torch.tensor([1.0]).bfloat16().requires_grad_(),
        "bfloat16",
    ),
    "sparse floats": (lambda torch: torch.tensor([[1.0, 0.0]]).to_sparse(), "float32"),
    "complex": (lambda torch: torch.tensor([1j]), "complex64"),
    "conjugate": (lambda torch: torch.tensor([1j]).conj(), "Tensor"),
    "meta": (lambda torch: torch.ones(3, dtype=torch.bool, device="meta"), "meta device"),
    "nested": (
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "nested tensor",
        "keep.unbind()",
        "from_list",
    ),
    "jagged": (
        lambda torch: torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged
        ),
        "nested tensor",
    ),
    "a list that requires_grad": (lambda torch: [torch.ones(2, requires_grad=True)], "float32"),
}


@pytest.mark.parametrize(
    ("make", "words"),
    [pytest.param(make, words, id=name) for name, (make, *words) in TORCH_REFUSED.items()],
)
def test_a_torch_tensor_that_is_no_mask(
    torch: Any,  # noqa: ANN401
    make: Make,
    words: list[str],
) -> None:
    refused(lambda: take_census(make(torch), BlockPool(2, shared_axes="")), *words)


def test_other_values_of_a_torch_tensor(torch: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"keep must .* got uint8 with 2 of 2 values"):
        take_census(~torch.tensor([1, 0], dtype=torch.uint8), 2)
    with pytest.raises(ValueError, match="token axis"):
        take_census(torch.tensor(data=True), 2)
    rows = [torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool)]
    with pytest.raises(ValueError, match=r"one length.*from_list"):
        take_census(rows, 2, axes="bt")
    refused(lambda: take_census([torch.ones(2, device="meta")], 2), "meta", name="keep[0]")


def test_torch_tensors_without_values(torch: Any) -> None:  # noqa: ANN401
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    with fake_tensor.FakeTensorMode():
        fake = torch.ones(3, dtype=torch.bool)
    refused(lambda: take_census(fake, 2), "FakeTensor", "tracing")
    mapped = torch.vmap(lambda row: take_census(row, 2))
    refused(lambda: mapped(torch.ones((2, 3), dtype=torch.bool)), "tracing")

    class Module(torch.nn.Module):  # type: ignore[misc]  # torch is whatever is installed
        def forward(self, keep: Any) -> Any:  # noqa: ANN401
            return take_census(keep, 2)

    refused(lambda: torch.fx.symbolic_trace(Module()), "Proxy", "tracing")


def test_lengths_and_offsets_of_torch(torch: Any) -> None:  # noqa: ANN401
    said = {"axes": "bt", "lengths": [2, 6], "offset": [1, 0]}
    tensors = {name: torch.tensor(s) if name != "axes" else s for name, s in said.items()}
    pool = BlockPool(2, shared_axes="")
    assert take_census(torch.tensor(KEEP), pool, **tensors) == take_census(KEEP, pool, **said)  # type: ignore[arg-type]  # axes and integers in one dict
    refused(
        lambda: take_census(KEEP, pool, lengths=torch.tensor([2.0, 6.0])),
        "integers",
        name="lengths",
    )


def test_converters_take_torch_tensors(torch: Any) -> None:  # noqa: ANN401
    tensor = torch.tensor(KEEP)
    kept = [row.nonzero().ravel() for row in tensor]
    filled = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True, padding_value=-1)
    lengths = torch.tensor([6, 6])
    offsets = torch.tensor([0, 6, 12])
    kept_offsets = torch.tensor([0, *map(len, kept)]).cumsum(0)
    evicted = torch.where(~tensor[None])
    bits = torch.tensor(np.packbits(KEEP, axis=-1))
    low = torch.finfo(torch.bfloat16).min
    additive = torch.where(tensor, 0.0, low).bfloat16()
    every = torch.ones_like(tensor)
    for keep in (
        masks.from_indices(filled, 6, fill=-1),
        masks.from_indices(kept, 6),
        masks.from_evicted(evicted, (1, 2, 6))[0],
        masks.from_evicted(torch.stack(evicted), torch.Size((1, 2, 6)))[0],
        masks.from_evicted([None, list(evicted)], (2, 1, 2, 6))[1, 0],
        masks.from_runs([[(0, 2)], torch.tensor([[0, 1], [4, 6]])], 6),
        masks.from_ragged(tensor.ravel(), offsets)[0],
        masks.from_ragged_indices(torch.cat(kept), kept_offsets, lengths)[0],
        masks.from_list(tensor)[0],
        masks.from_list(tensor.unbind())[0],
        masks.from_additive(additive),
        masks.from_additive(additive.requires_grad_()),
        masks.from_evict_mask(~tensor),
        masks.from_padded(tensor, every.long())[0],
        masks.from_packed(bits, 6),
        masks.to_kv_heads(tensor, 2),
        masks.to_kv_layers(tensor, torch.tensor([4, 5])),
        masks.compose(every, tensor),
        masks.with_implicit(tensor),
    ):
        assert keep.tolist() == KEEP.tolist()
    slots, written = masks.from_slots(filled.reshape(-1, 1), head_indices=torch.arange(6) // 3)
    assert slots.tolist() == (filled >= 0).tolist()
    assert written.tolist() == [3, 3]
    refused(lambda: masks.from_indices(tensor, 6), "bool", name="indices")
    refused(lambda: masks.from_indices(additive, 6), "bfloat16", name="indices")


def test_nested_rows_of_torch(torch: Any) -> None:  # noqa: ANN401
    rows = [torch.tensor([True, False]), torch.tensor([True, True, False])]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(rows, layout=layout)
        for tensors in (nested, nested.unbind(), rows):
            keep, lengths = masks.from_list(tensors)
            assert keep.tolist() == [[True, False, False], [True, True, False]]
            assert lengths.tolist() == [2, 3]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float64"])
def test_keys_of_torch_are_matched_by_their_bits(torch: Any, kind: str) -> None:  # noqa: ANN401
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn((2, 3, 7, 4), generator=generator).to(getattr(torch, kind))
    index = torch.rand((2, 3, 7), generator=generator).topk(4).indices
    left = keys.gather(2, index[..., None].expand(-1, -1, -1, 4))
    found = masks.from_rows(keys.requires_grad_(), left)
    assert found.keep.tolist() == masks.from_indices(index, 7).tolist()
    assert found[1:] == (0, 0)
    other = torch.float16 if kind == "bfloat16" else torch.bfloat16  # a cast loses bits
    with pytest.raises(ValueError, match=r"after must .*; got .*; write"):
        masks.from_rows(keys, left.to(other))


def test_a_type_that_numpy_does_not_have_is_called_by_its_name(torch: Any) -> None:  # noqa: ANN401
    keys = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"got bfloat16 of shape \(1, 2\) for float16 of shape"):
        masks.from_rows(keys.half(), keys[:1].bfloat16())


# --- jax ---


def test_a_jax_mask_is_the_numpy_mask(jax: Any) -> None:  # noqa: ANN401
    for kind in (bool, "uint8", "int32", jax.numpy.int4):
        array = jax.numpy.array(KEEP).astype(kind)
        assert take_census(array, 2, axes="ht") == take_census(KEEP, 2, axes="ht")
        assert take_census(np.asarray(array), 2, axes="ht") == take_census(KEEP, 2, axes="ht")
    rows = list(jax.numpy.array(KEEP))
    assert take_census(rows, 2, axes="ht") == take_census(KEEP, 2, axes="ht")


def test_a_jax_array_that_is_no_mask(jax: Any) -> None:  # noqa: ANN401
    for kind in ("float32", "bfloat16", "float8_e4m3fn"):
        array = jax.numpy.array([1, 0]).astype(getattr(jax.numpy, kind))
        for came in (array, np.asarray(array)):
            refused(partial(take_census, came, 2), f"array of {kind}", "keep == 1")
    additive = jax.numpy.array([0, -jax.numpy.inf], jax.numpy.bfloat16)
    refused(lambda: take_census(additive, 2), "bfloat16", "from_additive(keep)")
    assert masks.from_additive(additive).tolist() == [True, False]
    refused(lambda: take_census(jax.random.key(0), 2), "PRNGKeyArray")
    with pytest.raises(ValueError, match=r"int32 with 1 of 2 values"):
        take_census(jax.numpy.array([0, 2]), 2)


def test_traced_jax_arrays(jax: Any) -> None:  # noqa: ANN401
    def census(keep: Any) -> Any:  # noqa: ANN401
        return take_census(keep, 2)

    keep = jax.numpy.array([[True, False]])
    refused(lambda: jax.jit(census)(keep), "traced jax array", "call outside jit")
    refused(lambda: jax.vmap(census)(keep), "traced jax array", "call outside jit")
    refused(lambda: jax.grad(census)(1.0), "traced jax array", "call outside jit")
    indices = jax.jit(lambda kept: masks.from_indices(kept, 3))
    refused(lambda: indices(jax.numpy.array([1])), "call outside jit", name="indices")


def test_converters_take_jax_arrays(jax: Any) -> None:  # noqa: ANN401
    keep = masks.from_indices(jax.numpy.array([[2, 0], [1, -1]]), 3, fill=-1)
    assert keep.tolist() == [[True, False, True], [False, True, False]]
    assert masks.from_evict_mask(jax.numpy.array(keep)).tolist() == (~keep).tolist()
    keys = jax.random.normal(jax.random.key(0), (2, 5, 4)).astype(jax.numpy.bfloat16)
    found = masks.from_rows(keys, keys[:, ::-2])
    assert found.keep.tolist() == [[True, False, True, False, True]] * 2
    assert found[1:] == (0, 0)


# --- Libraries that are not here: what they are known by ---


class OnGpu:
    """A torch tensor on a GPU: NumPy cannot read it before it is copied to the host."""

    is_nested = is_meta = False
    layout = "torch.strided"

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.dtype = f"torch.{values.dtype}"
        self.ndim = values.ndim

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.values.shape}

    def detach(self) -> OnGpu:
        return self

    def cpu(self) -> NDArray[Any]:
        return self.values


class Cupy:
    """An array that NumPy must not copy implicitly."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.dtype = values.dtype

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.values.shape}

    def get(self) -> NDArray[Any]:
        return self.values


class Dlpack:
    """An array that offers DLPack and nothing else."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self.values.__dlpack_device__()


class Array:
    """An array that offers `__array__` and nothing else."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        return self.values


@pytest.mark.parametrize("kind", [OnGpu, Cupy, Dlpack, Array])
def test_arrays_of_any_library(kind: Callable[[NDArray[Any]], Any]) -> None:
    expected = take_census(KEEP, 2, axes="ht")
    for values in (KEEP, KEEP.astype("u1"), KEEP.astype("i8")):
        assert take_census(kind(values), 2, axes="ht") == expected
    refused(lambda: take_census(kind(np.array([1.0, 0.0])), 2), "keep == 1")
    with pytest.raises(ValueError, match="1 of 2 values"):
        take_census(kind(np.array([0, 2])), 2)
    positions = kind(np.array([2, 0]))
    assert masks.from_indices(positions, 3).tolist() == [True, False, True]
    assert take_census(KEEP[0], 2, lengths=kind(np.array(6))) == take_census(KEEP[0], 2)


def test_lists_of_arrays_on_a_gpu() -> None:
    rows = [OnGpu(row) for row in KEEP]
    assert _checks.as_keep(rows).tolist() == KEEP.tolist()
    assert masks.from_list(rows)[0].tolist() == KEEP.tolist()
    positions = [OnGpu(np.flatnonzero(row)) for row in KEEP]
    assert masks.from_indices(positions, 6).tolist() == KEEP.tolist()


class Unreadable:
    """An array that no one can read."""

    dtype = "bool"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise self.error


class TracerArrayConversionError(TypeError):
    """What jax raises where an array is traced."""


def test_arrays_that_cannot_be_read() -> None:
    for error in (TypeError("a\nb"), RuntimeError("c"), ValueError("d"), NotImplementedError("e")):
        message = refused(partial(take_census, Unreadable(error), 2), "Unreadable")
        assert str(error) not in message.split()
    traced = Unreadable(TracerArrayConversionError("The numpy.ndarray conversion method ..."))
    refused(lambda: take_census(traced, 2), "traced jax array", "call outside jit")
    with pytest.raises(MemoryError):
        take_census(Unreadable(MemoryError()), 2)


def test_a_numpy_array_is_looked_at_first() -> None:
    """The fast way: a mask that is one already is not copied, nor is its class asked for more."""
    assert _checks.as_keep(KEEP) is KEEP
    view = np.rec.array(KEEP)
    assert type(view) is not np.ndarray
    assert take_census(view, 2, axes="ht") == take_census(KEEP, 2, axes="ht")

"""What a release rests on: one version everywhere, pinned actions, and no loader of pickles."""

from __future__ import annotations

import ast
import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from optional import library

import kvreclaim

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FILES = sorted(Path(kvreclaim.__file__).parent.rglob("*.py"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def first(pattern: str, path: str) -> str:
    found = re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert found, path
    return found[1]


def test_the_version_is_one() -> None:
    assert first(r"^version: (\S+)$", "CITATION.cff") == kvreclaim.__version__
    newest, _, date = first(r"^## (.+)$", "CHANGELOG.md").partition(" - ")
    assert newest == kvreclaim.__version__
    if date != "unreleased":
        assert first(r"^date-released: (\S+)$", "CITATION.cff") == date


def test_citation_names_the_licence_of_the_package() -> None:
    assert first(r"^license: (\S+)$", "CITATION.cff") == first(
        r'^license = "(\S+)"$', "pyproject.toml"
    )


def test_workflows_are_found() -> None:
    assert {path.stem for path in WORKFLOWS} == {"ci", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_name_their_version(path: Path) -> None:
    text = path.read_text("utf-8")
    used = re.findall(r"\buses: *(.*)", text)
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)


def test_an_action_has_one_version_in_all_workflows() -> None:
    text = "".join(path.read_text("utf-8") for path in WORKFLOWS)
    used = {*re.findall(r"\buses: *(.*)", text)}
    assert len(used) == len({action.partition("@")[0] for action in used})


def test_no_part_of_the_package_loads_pickles() -> None:
    loads = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not UNPICKLERS & {name.name.partition(".")[0] for name in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in UNPICKLERS, path
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is (node.arg == "weights_only"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = ast.unparse(node.func)
                if name in ("np.load", "numpy.load", "torch.load"):
                    loads.append((path.name, name, {word.arg for word in node.keywords}))
    assert [(file, name) for file, name, _ in loads] == [("tensors.py", "torch.load")]
    assert "weights_only" in loads[0][2]


class Marked:
    """What writes a file, if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def tar_and_zip(data: bytes) -> bytes:
    """Return torch's oldest form, a tar, that is a zip with a data.pkl as well."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("PK\x05\x06", "storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.write(bytes(1 << 17))  # so that the first member's name is not found as a zip's end
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a/data.pkl", data)
    return file.getvalue()


@pytest.mark.parametrize("form", ["zip", "pickle", "tar and zip"])
def test_objects_of_torch_are_refused_whatever_the_environment_says(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    file, touched = io.BytesIO(), tmp_path / "unpickled"
    torch.save({"keep": Marked(touched)}, file, _use_new_zipfile_serialization=form == "zip")
    path = tmp_path / "a.pt"
    path.write_bytes(tar_and_zip(file.getvalue()) if form == "tar and zip" else file.getvalue())
    for read in (kvreclaim.load_masks, kvreclaim.mask_names):
        with pytest.raises(ValueError, match="never loaded"):
            read(path)
    assert not touched.exists()
    file.seek(0)
    torch.load(file, weights_only=False)
    assert touched.exists(), "the file that is refused does nothing"


def test_a_torch_that_can_be_made_to_unpickle_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch")
    path = tmp_path / "a.pt"
    torch.save(torch.ones(3, dtype=torch.bool), path)
    for release in ("2.9.1+cpu", "2.5.1", "1.13.0"):
        monkeypatch.setattr(torch, "__version__", release)
        with pytest.raises(
            ImportError, match=rf"torch 2\.10 or newer.*got torch {re.escape(release)}"
        ):
            kvreclaim.load_masks(path)
    for release in ("2.10.0", "2.13.0+cpu", "3.0.0a0+git1"):
        monkeypatch.setattr(torch, "__version__", release)
        assert kvreclaim.load_masks(path).keep.tolist() == [True] * 3

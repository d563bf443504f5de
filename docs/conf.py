"""How the site is made, without a network: sphinx-build -n -W docs build/site."""

import re

from docutils import nodes
from numpy.typing import ArrayLike
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import stringify_annotation

from kvreclaim import __version__

project = "kvreclaim"
author = "The kvreclaim authors"
project_copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["study"]
nb_execution_mode = "off"  # tests run the notebooks; here they show the outputs that they store
myst_heading_anchors = 3  # a link to a heading leads where it does on GitHub

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "PoolLike": "PoolLike"}
autosummary_generate = False  # the pages of docs/api are written by hand
numpydoc_show_class_members = False  # autodoc puts them below the class
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
default_role = "autolink"  # docstrings put names in single backticks, parameters too
# Names of other libraries, whose pages would have to be fetched, and of types that have no page.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|fractions|math|np|numpy|os|typing)\..*"),
    ("py:class", r"ArrayLike|NDArray|PoolLike|SearchStrategy|.*\.OpenMasks"),
]
suppress_warnings = ["misc.highlighting_failure"]  # a notebook has commands: !kvreclaim report

html_theme = "furo"
html_title = f"kvreclaim {release}"
html_copy_source = False


def close_fences(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Take out the blank line at the end of an example, which doctest asks for."""
    text[0] = text[0].replace("\n\n```\n", "\n```\n")


def find_in_package(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.Element
) -> nodes.Element | None:
    """Find what a docstring, or a type, names by another module than the one that shows it."""
    if node.get("refdomain") != "py":
        return None
    name, in_class = node["reftarget"], node.get("py:class")
    node["py:module"], node["py:class"] = "kvreclaim", None
    for target in (name, name.rpartition(".")[2]):
        found = env.domains.python_domain.resolve_xref(
            env, node["refdoc"], app.builder, node["reftype"], target, node, shown
        )
        if found is not None:
            return found
    # A field of a record stands among its parameters, and has no place of its own.
    return shown if in_class and node["reftype"] == "obj" else None


SHORTER = (
    (re.escape(stringify_annotation(ArrayLike, "smart")), "ArrayLike"),
    (r"~numpy\.ndarray\[tuple\[~?[\w.]+, \.\.\.\], ~numpy\.dtype\[(~?[\w.]+)\]\]", r"NDArray[\1]"),
    (r"TypeAliasForwardRef\('(\w+)'\)", r"\1"),  # Sphinx, of an alias in a union
    (r": object(?= =|,|\))", ""),  # a field with a converter takes what that takes
    (r"=( ?)NOTHING\b", r"=\1..."),  # attrs, of a default that depends on other fields
)


def shorten(*event: object) -> tuple[str | None, str | None]:
    """Write a type as the code does, not as what it stands for."""
    texts = [None if part is None else str(part) for part in event[-2:]]
    for long, short in SHORTER:
        texts = [None if text is None else re.sub(long, short, text) for text in texts]
    return texts[0], texts[1]


def hide_fields(*event: object) -> bool | None:
    """Leave out fields of named tuples, which stand among the parameters."""
    *_, member, skipped, _ = event
    return True if type(member).__name__ == "_tuplegetter" else skipped or None


def setup(app: Sphinx) -> None:
    """Let Sphinx call the functions above."""
    app.connect("source-read", close_fences)
    app.connect("missing-reference", find_in_package)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", hide_fields)

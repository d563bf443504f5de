"""A table of text cells for a notebook: no scripts, nothing from elsewhere, the theme's colours."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from kvreclaim._render.tables import printable

# In each element, since notebooks drop style sheets; what is not said comes from the theme.
_CAPTION: Final = "caption-side:top;text-align:left;padding:0 0 .4em;overflow-wrap:anywhere"
_BOX: Final = "overflow-x:auto"  # a table that is too wide moves in it, and not the page
_TABLE: Final = "border-collapse:collapse"
_NAME: Final = "text-align:left;font-weight:normal"
_CELL: Final = "text-align:right;padding-left:1em;font-variant-numeric:tabular-nums"
_REMARK: Final = "text-align:left;padding-left:1em"
_GROUP: Final = ";border-top:1px solid"


def as_html(
    signature: str,
    headings: Sequence[str],
    groups: Iterable[Sequence[Sequence[str]]],
    notes: Iterable[str],
) -> str:
    """Return groups of rows under a signature, with notes below; any text is escaped.

    The first cell of a row names it. Without headings the last one is a remark.
    """
    parts = [
        f'<div style="{_BOX}"><table style="{_TABLE}">',
        f'<caption style="{_CAPTION}"><code>{_text(signature)}</code></caption>',
    ]
    if headings:
        cells = "".join(
            f'<th scope="col" style="{_CELL}">{_text(heading)}</th>' for heading in headings
        )
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    for number, group in enumerate(groups):
        parts.append("<tbody>")
        for row, cells_of in enumerate(group):
            rule = _GROUP if number and not row else ""
            parts.append(_row(cells_of, rule, last=_CELL if headings else _REMARK))
        parts.append("</tbody>")
    parts.append("</table>")
    parts += [f"<p>{_text(note).strip()}</p>" for note in notes]
    return "\n".join([*parts, "</div>"])


def _row(cells: Sequence[str], rule: str, *, last: str) -> str:
    name, *others = cells
    styles = [_CELL] * (len(others) - 1) + [last]
    indented = ";padding-left:2em" if name.startswith("  ") else ""
    columns = "".join(
        f'<td style="{style}{rule}">{_text(cell)}</td>'
        for style, cell in zip(styles, others, strict=True)
    )
    heading = f'<th scope="row" style="{_NAME}{indented}{rule}">{_text(name).strip()}</th>'
    return f"<tr>{heading}{columns}</tr>"


def _text(text: str) -> str:
    return html.escape(printable(text))

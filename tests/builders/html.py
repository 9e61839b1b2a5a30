"""A page taken apart by Python's parser of HTML."""

from __future__ import annotations

from html.parser import HTMLParser

from plotly.offline import get_plotlyjs

from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run

LOADING = {"src", "href", "srcset", "data", "poster", "action", "formaction", "background", "ping", "xlink:href"}


class Elements(HTMLParser):
    """The elements of a page in order, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def json(self) -> list[str]:
        kinds = [attributes.get("type") for tag, attributes in self.found if tag == "script"]
        return [text for kind, text in zip(kinds, self.scripts, strict=True) if kind == "application/json"]


def elements(analysis: Analysis) -> Elements:
    """Return the elements of an analysis's page; plotly.js itself is left out, it is not ours."""
    return Elements(page.render(of_run(analysis)).replace(get_plotlyjs(), ""))

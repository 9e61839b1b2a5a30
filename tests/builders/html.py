"""A page taken apart by Python's parser of HTML."""

from __future__ import annotations

import base64
import gzip
from html.parser import HTMLParser

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
        """The data of the charts, in their order, and then run.json."""
        return [unpacked(text) for name, text in self._packed if name != "plotly"]

    @property
    def plotly(self) -> list[str]:
        """The plotly.js that lies in the page."""
        return [unpacked(text) for name, text in self._packed if name == "plotly" and text]

    @property
    def _packed(self) -> list[tuple[str | None, str]]:
        scripts = [attributes for tag, attributes in self.found if tag == "script"]
        both = zip(scripts, self.scripts, strict=True)
        return [(script.get("id"), text) for script, text in both if script.get("type") == "application/gzip"]


def unpacked(text: str) -> str:
    """Return what a page inflates."""
    return gzip.decompress(base64.b64decode(text, validate=True)).decode()


def elements(analysis: Analysis) -> Elements:
    """Return the elements of an analysis's page."""
    return Elements(page.render(of_run(analysis)))

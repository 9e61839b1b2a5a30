from __future__ import annotations

import base64
import hashlib
import re

from plotly.offline import get_plotlyjs, get_plotlyjs_version

from dpdoctor.report import page, plotlyjs
from dpdoctor.report.documents.run import of_run
from tests.builders import runs
from tests.builders.html import LOADING, Elements

LINK = "../plotly-1.2.3.min.js"


def test_the_file_is_named_after_the_version() -> None:
    assert f"plotly-{get_plotlyjs_version()}.min.js" == plotlyjs.FILE
    assert plotlyjs.source() == get_plotlyjs()


def test_a_page_that_shares_it_is_small_and_says_what_it_loads() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    assert Elements(html).plotly == []
    assert len(html) < len(page.render(of_run(runs.cpu_run()))) - 1_900_000
    (said,) = re.findall("<footer>(.*?)</footer>", html, re.DOTALL)
    assert LINK in said
    assert "loads nothing" not in said
    assert "loads nothing" in page.render(of_run(runs.cpu_run())).rpartition("<footer>")[2]


def test_no_element_loads_it_but_our_script_by_its_hash() -> None:
    found = Elements(page.render(of_run(runs.cpu_run()), plotly_link=LINK)).found
    assert not [name for _, attributes in found for name in LOADING & set(attributes) if name != "href"]
    (loader,) = [attributes for tag, attributes in found if tag == "script" and "data-link" in attributes]
    digest = base64.b64encode(hashlib.sha256(get_plotlyjs().encode()).digest()).decode()
    assert loader == {
        "type": "application/gzip",
        "id": "plotly",
        "data-link": LINK,
        "data-integrity": f"sha256-{digest}",
    }


def test_the_policy_trusts_our_scripts_and_what_they_load() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    scripts = [*re.findall(r"<script>(.*?)</script>", html, re.DOTALL), get_plotlyjs()]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    trusted = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; script-src {trusted} 'strict-dynamic'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def test_what_to_do_without_it_is_hidden_until_it_is_missed() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    notices = [item for item in Elements(html).found if item[0] == "aside"]
    (notice,) = [attributes for _, attributes in notices if attributes.get("id") == "no-plotly"]
    assert "hidden" in notice
    assert "DecompressionStream" in page.render(of_run(runs.cpu_run())).partition("<main ")[2].partition("<section")[0]

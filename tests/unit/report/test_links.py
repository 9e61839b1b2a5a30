"""Findings lead to the view that draws what they are about, and back."""

from __future__ import annotations

import re

from dpdoctor.report import page
from dpdoctor.report.documents.run import SECTIONS, of_run
from dpdoctor.report.views.findings import SEEN_IN
from dpdoctor.rules import BY_NAME
from tests.builders import diagnosed_runs


def test_every_rule_is_drawn_in_a_view() -> None:
    assert set(SEEN_IN) == set(BY_NAME)
    assert set(SEEN_IN.values()) <= {view.name for section in SECTIONS for view in section.views}


def test_a_finding_and_the_view_of_its_mode_lead_to_each_other() -> None:
    html = page.render(of_run(diagnosed_runs.diagnosed_run()))
    assert '<a href="#loader-ddp">Where it is drawn</a>' in html
    loader = html.partition('id="loader"')[2].partition('<div class="view"')[0]
    (anchor, title), *_ = re.findall(r'<a href="#(finding-[^"]*)">([^<]*)</a>', loader)
    assert title.startswith("ddp: ")
    assert f'id="{anchor}"' in html


def test_no_link_leads_nowhere() -> None:
    for run in (diagnosed_runs.diagnosed_run(), diagnosed_runs.hostile_findings()):
        html = page.render(of_run(run))
        targets = set(re.findall(r'\bid="([^"]+)"', html))
        assert set(re.findall(r'href="#([^"]+)"', html)) <= targets

from __future__ import annotations

from dpdoctor.report.drawing import charts


def test_text_of_a_run_is_neither_markup_nor_tex_for_plotly() -> None:
    assert charts.plain("$HOME/$USER & <co>") == "&#36;HOME/&#36;USER &amp; &lt;co&gt;"

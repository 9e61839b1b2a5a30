"""The report for a pull request: a comment in GitHub's Markdown, with the facts of the page's first screen."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.documents.brief import Brief, Trouble, brief
from dpdoctor.report.formats.comment import LONGEST_NAME, PARAGRAPHS, Part, assembled, fenced, plain, table_parts
from dpdoctor.report.text import capital, listed, run_title, sentence
from dpdoctor.report.words.diagnosis import Bottleneck, Treatment


def comment(analysis: Diagnosis) -> str:
    """Return the comment: at most MOST_CHARACTERS; what had to be left out is said.

    Text from the run is shown as it is: no markup, mention, link or element in it comes to life.
    """
    found = brief(analysis)
    origin = f"{plain(run_title(analysis), LONGEST_NAME)}, {plain(analysis.summary.created, LONGEST_NAME)}"
    last = f"{origin}. {plain(' '.join(found.notes))}".rstrip()
    return assembled(PARAGRAPHS.join(_opening(found)), list(_parts(found)), last)


def _opening(found: Brief) -> Iterator[str]:
    yield f"### {plain(found.verdict.sentence)}"
    if found.verdict.detail:
        yield plain(found.verdict.detail)


def _parts(found: Brief) -> Iterator[Part]:
    for table in found.tables:
        yield from table_parts(table)
    yield Part(noun="late rank", items=tuple(map(plain, found.late)))
    yield Part(noun="bottleneck", items=tuple(map(_bottleneck, found.bottlenecks)))
    yield Part(noun="failure", items=tuple(map(_trouble, found.troubles)))
    yield Part(
        noun="remark", items=tuple(f"- {plain(remark)}" for remark in found.remarks), head="Remarks:", joint="\n"
    )


def _bottleneck(bottleneck: Bottleneck) -> str:
    parts = [f"#### {plain(capital(bottleneck.title))}"]
    for treatment in bottleneck.treatments:
        parts += _treatment(treatment)
    return PARAGRAPHS.join(parts)


def _treatment(treatment: Treatment) -> Iterator[str]:
    yield "\n".join(f"- {plain(cost)}" for cost in treatment.costs)
    if treatment.remedy:
        yield plain(sentence(capital(treatment.remedy)))
    if treatment.lines:
        yield f"In your script: {listed([plain(line, LONGEST_NAME) for line in treatment.lines])}"
    if treatment.code:
        yield fenced([treatment.code], "python")


def _trouble(trouble: Trouble) -> str:
    """Return what went wrong and, behind a click, what was printed."""
    text = plain(trouble.sentence)
    if not trouble.lines:
        return text
    return f"{text}\n\n<details><summary>Details</summary>\n\n{fenced(trouble.lines, 'text')}\n\n</details>"

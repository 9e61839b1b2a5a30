from __future__ import annotations

import dataclasses

from rich.console import Console

from dpdoctor.analysis import analyse
from dpdoctor.report.formats import explain
from tests.builders import records, runs
from tests.builders.figures import figures


def test_a_loader_of_an_iterable_dataset_has_no_sampler() -> None:
    wrapped = runs.conversion()
    loader = dataclasses.replace(wrapped.loaders[0], dataset="Records", sampler="_InfiniteConstantSampler")
    rank = runs.rank(conversion=dataclasses.replace(wrapped, loaders=(loader,)))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(explain.explanation(analyse(records.run({"single": [records.launch(rank)]}))))
    (line,) = [line for line in capture.get().splitlines() if "train.py:30" in line]
    assert all(words in line for words in ("Records, none (iterable), ", "per-device"))
    assert figures(line) == ["30", "32", "2"]

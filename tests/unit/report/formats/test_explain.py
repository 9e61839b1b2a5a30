from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from dpdoctor.analysis import analyse
from dpdoctor.records import Check
from dpdoctor.report.formats import explain
from tests.builders import records, runs
from tests.builders.figures import figures


def test_a_loader_of_an_iterable_dataset_has_no_sampler() -> None:
    wrapped = runs.conversion()
    loader = replace(wrapped.loaders[0], dataset="Records", sampler="_InfiniteConstantSampler")
    rank = runs.rank(conversion=replace(wrapped, loaders=(loader,)))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(explain.explanation(analyse(records.run({"single": [records.launch(rank)]}))))
    (line,) = [line for line in capture.get().splitlines() if "train.py:30" in line]
    assert all(words in line for words in ("Records, none (iterable), ", "per-device"))
    assert figures(line) == ["30", "32", "2"]


def test_a_run_cannot_command_the_terminal() -> None:
    wrapped = runs.conversion(warnings=["\x1b[2Jgone"], proof=[Check(name="parameters equal", ok=True, text="\x1b]0;")])
    module = replace(wrapped.modules[0], name="\x1b[1mNet", unused=("\x07bias",))
    rank = runs.rank(conversion=replace(wrapped, modules=(module,)))
    console = Console(width=200)
    with console.capture() as capture:
        launch = records.launch(rank, status="failed", reason="\x1b[31mred")
        console.print(explain.explanation(analyse(records.run({"single": [launch]}))))
    text = capture.get()
    assert not {"\x1b", "\x07"} & set(text)
    assert "gone" in text
    assert "[2J" not in text
    assert "\N{REPLACEMENT CHARACTER}]0;" in text


def test_no_path_is_broken_inside_of_its_file_or_line_number() -> None:
    wrapped, path = runs.conversion(), f"/{'home/' * 14}pytorch_training.py:1084"
    rank = runs.rank(
        conversion=replace(
            wrapped,
            loaders=(replace(wrapped.loaders[0], line=path),),
            modules=(replace(wrapped.modules[0], line=path),),
            warnings=(f"{path} calls deepcopy",),
        )
    )
    console = Console(width=80)
    with console.capture() as capture:
        launch = records.launch(rank, status="failed", reason=f"{path} raised RuntimeError")
        console.print(explain.explanation(analyse(records.run({"single": [launch]}))))
    assert capture.get().count("pytorch_training.py:1084") == 4

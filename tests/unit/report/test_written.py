from __future__ import annotations

from rich.console import Console

from dpdoctor.analysis import Analysis, analyse
from dpdoctor.records import Conversion, Written
from dpdoctor.report.blocks import Fold, Table
from dpdoctor.report.formats import terminal
from dpdoctor.report.text import left_alone
from dpdoctor.report.views import conversion
from tests.builders.records import even_rank, launch, run
from tests.builders.sections import flat

FILES = (
    Written(path="/home/me/model.pt", change="changed", num_bytes=1_500_000),
    Written(path="/home/me/old.txt", change="removed"),
)


def analysis(*written: Written) -> Analysis:
    return analyse(run({"single": [launch(even_rank(100, conversion=Conversion(written=written)))]}))


def printed(shown: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def folds(found: Analysis) -> dict[str, Table]:
    blocks = [block for block in flat(conversion.build(found)) if isinstance(block, Fold)]
    return {block.title: block.blocks[0] for block in blocks if isinstance(block.blocks[0], Table)}


def test_files_left_alone_are_listed_with_their_size() -> None:
    table = folds(analysis(*FILES))[left_alone(2)]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["/home/me/model.pt", "changed", "1.50 MB"],
        ["/home/me/old.txt", "removed", "\N{EM DASH}"],
    ]


def test_a_long_list_says_where_the_rest_is() -> None:
    many = (Written(path=f"/{index}", change="new") for index in range(conversion.MOST_FILES + 3))
    (table,) = folds(analysis(*many)).values()
    assert len(table.rows) == conversion.MOST_FILES
    assert "3 more are in rank.json" in table.caption


def test_the_terminal_counts_them() -> None:
    assert left_alone(1) in printed(terminal.summary(analysis(FILES[0])))
    assert "--allow-writes" in printed(terminal.summary(analysis(FILES[0])))
    assert left_alone(2) in printed(terminal.explanation(analysis(*FILES)))


def test_nothing_is_said_of_no_files() -> None:
    assert folds(analysis()) == {}
    assert "--allow-writes" not in printed(terminal.summary(analysis()))

"""Plans of which task reads what, from footers that are made up here."""

import pytest

from antecede.errors import BadTrace
from antecede.trace import plan as chunks
from antecede.trace.footers import Footer, Group
from antecede.trace.plan import PARTS_MOST, ROWS, TASKS, bounds, choose_cuts, explain_plan, plan


def file(name, spans, rows=1000, ordered=True, run="r"):
    return Footer(name, 0, ordered, run, tuple(Group(rows, run and (run, run), span) for span in spans))


def parts_of(made, run="r"):
    return [part for chunk in made.chunks for part in chunk.parts if part.run == run]


def groups_of(part):
    return [(piece.path, g) for piece in part.pieces for g in range(piece.first, piece.last + 1)]


def test_files_in_order_are_streamed_and_every_row_group_is_read_once():
    files = [file("a", [(0, 9), (10, 19), (20, 29)]), file("b", [(29, 40), (41, 50)])]
    made = plan(files, ["r"], parts=2)
    assert made.ways == {"r": "sequence"}
    assert [g for part in parts_of(made) for g in groups_of(part)] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 0),
        ("b", 1),
    ]
    assert [(part.number, part.of, part.clocks) for part in parts_of(made)] == [(0, 2, None), (1, 2, None)]


def test_files_that_overlap_are_merged_by_ranges_of_clocks():
    files = [file("a", [(0, 9), (10, 19)]), file("b", [(0, 9), (10, 19)])]
    made = plan(files, ["r"], parts=2)
    assert made.ways == {"r": "merge"}
    assert [(part.clocks, groups_of(part)) for part in parts_of(made)] == [
        ((None, 10), [("a", 0), ("b", 0)]),
        ((10, None), [("a", 1), ("b", 1)]),
    ]


@pytest.mark.parametrize(
    ("files", "blind"),
    [
        ([file("a", [(0, 99), (0, 99), (0, 99)], ordered=False)], ()),
        ([file("a", [None])], ("r",)),
        ([file("a", [(0, 9)], run=None)], ("r", "s")),
    ],
    ids=["row groups that span everything", "no clocks", "nobody says whose they are"],
)
def test_the_rest_is_packed(files, blind):
    made = plan(files, ["r", "s"], parts=3)
    assert made.ways["r"] == "pack"
    assert made.chunks == ()
    assert made.blind == blind


def test_a_thousand_short_runs_are_few_tasks():
    files = [file(f"{i:04}", [(0, 9)], run=f"r{i}") for i in range(1000)]
    made = plan(files, [f"r{i}" for i in range(1000)])
    assert len(made.chunks) == 1
    assert all(part.of == 1 for part in made.chunks[0].parts)


def test_a_long_run_among_short_ones_is_cut_and_they_are_not():
    files = [file("long", [(i, i + 1) for i in range(50)], rows=ROWS // 8, run="long")]
    files += [file(f"short{i}", [(0, 9)], run=f"short{i}") for i in range(20)]
    made = plan(files, [f.run for f in files])
    assert len(parts_of(made, "long")) == TASKS
    assert max(chunk.rows for chunk in made.chunks) <= 1.3 * 50 * ROWS // 8 / TASKS
    assert "8 tasks" in explain_plan(made, [])


def test_a_run_has_no_more_parts_than_one_task_can_combine():
    made = plan([file("a", [(i, i) for i in range(2000)], rows=ROWS)], ["r"])
    assert len(parts_of(made)) == PARTS_MOST


def test_ranges_of_clocks_follow_where_the_rows_are():
    dense = [chunks.Stretch("a", i, Group(1000, None, (i, i)), True) for i in range(90)]
    sparse = [chunks.Stretch("a", 90, Group(1000, None, (90, 10_000_000)), True)]
    below = bounds(dense + sparse, 30_000)
    assert below == (31, 61)


def test_quantiles_cut_evenly():
    [cut] = choose_cuts({"r": (100, list(range(256)))}, parts=4)
    assert cut.below == (64, 128, 192)
    [cut] = choose_cuts({"r": (100, [7] * 256)}, parts=4)
    assert cut.below == (7,)


@pytest.mark.parametrize(
    ("footer", "told"),
    [
        (
            file("a", [(0, 9)], run="x"),
            "a: it has events of run x, which runs.parquet does not name",
        ),
        (
            Footer("a", 0, True, "r", (Group(1, ("s", "s"), (0, 1)),)),
            "a: it has events of run s, and says that it has only run r",
        ),
    ],
)
def test_events_of_someone_else_are_refused(footer, told):
    with pytest.raises(BadTrace) as error:
        plan([footer], ["r", "s"])
    assert str(error.value) == told


def test_a_large_run_has_as_many_tasks_as_its_rows_need():
    """Also where no file tells its clocks: as many as the rows ask for, not as some machine has cores."""
    [cut] = choose_cuts({"r": (200 * ROWS, list(range(10_000)))})
    assert len(cut.below) + 1 == 200

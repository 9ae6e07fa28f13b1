"""antecede verify EVENTS --id --causes --consumer: was a consumer handed an effect before its cause?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from antecede.cli.columns import (
    list_files,
    name_partition,
    refuse_unknown_columns,
    split_names,
    suggest_no_cause,
)
from antecede.cli.output import SHOWN, count_things, print_json, print_sentence
from antecede.cli.spark_session import open_work
from antecede.errors import BadParameter

if TYPE_CHECKING:
    from antecede.spark.frames import ByCauses
    from antecede.spark.verify.by_causes import CausesVerification

__all__ = ["Columns", "verify_causes"]


class Columns(Struct, frozen=True):
    """Which columns say what; None is not said."""

    id: str | None
    causes: str | None
    consumer: str | None
    position: str | None
    time: str | None
    partition_by: str | None
    no_cause: tuple[str, ...]

    def is_given(self) -> bool:
        return self != Columns(None, None, None, None, None, None, ())

    @property
    def groups(self) -> tuple[str, ...]:
        return split_names(self.partition_by) or ()

    def name_causes(self) -> ByCauses:
        """What Spark is asked, once `refuse_request` has found nothing wrong."""
        from antecede.spark.frames import ByCauses

        at = self.position or self.time
        return ByCauses(str(self.id), str(self.causes), self.groups, at, ("", *self.no_cause))

    def describe(self, row: Mapping[str, Any]) -> str:
        """A finding in words."""
        where = f"{name_partition(row, self.groups)}: " if self.groups else ""
        return f"{where}{describe_finding(row)}"


def verify_causes(
    events: str, columns: Columns, out: str | None, as_json: bool, master: str | None, remote: str | None
) -> None:
    """Exit code 0: nothing came late or twice, as far as is known. 1: something did, or a partition is refused."""
    refuse_request(columns)
    groups = columns.groups
    named = [(name, getattr(columns, name)) for name in ("id", "causes", "consumer", "position", "time")]
    named += [("partition-by", name) for name in groups]
    refuse_unknown_columns("verify", events, named)
    places = [] if out is None else [f"{out.rstrip('/')}/{name}" for name in ("findings", "verdicts")]
    with open_work(master, remote, "reading", reads=list_files(events), writes=places) as work:
        from antecede.spark.tables import read_table
        from antecede.spark.verify.api import verify

        assert columns.id is not None
        assert columns.causes is not None
        assert columns.consumer is not None
        table = read_table(work.spark, events)
        work.say("verifying")
        found = verify(
            table,
            id=columns.id,
            causes=columns.causes,
            consumer=columns.consumer,
            position=columns.position,
            time=columns.time,
            partition_by=groups,
            no_cause=("", *columns.no_cause),
        )
        if out is not None:
            work.say("writing")
            found.write(out)
        any_found = any(found.counts[name] for name in ("violations", "duplicates", "missing"))
        examples = found.examples(SHOWN) if any_found else []
        found.release()
    report(found, [columns.describe(row) for row in examples], out, as_json)
    if (advice := suggest_no_cause([row["id"] for row in examples if row["kind"] == "missing"])) is not None:
        print_sentence(advice)
    if found.verdict == "no" or found.refused:
        raise typer.Exit(1)


def refuse_request(columns: Columns) -> None:
    """What can be refused without a Spark."""
    for option in ("id", "causes", "consumer"):
        if getattr(columns, option) is None:
            raise BadParameter(
                "verify", f"--{option} is missing: give --id, --causes and --consumer together"
            )
    if (columns.position is None) == (columns.time is None):
        raise BadParameter("verify", "give --position or --time, one of them")


def report(found: CausesVerification, examples: list[str], out: str | None, as_json: bool) -> None:
    if as_json:
        judged = {"verdict": found.verdict, "reason": found.reason, "causality": "stated"}
        print_json({**judged, **found.counts, "refusals": found.refused, "out": out})
    for words in examples:
        print_sentence(words)
    for row in found.refused:
        print_sentence(f"refused: {name_partition(row, found.partition_by)}: {row['reason']}")
    counts = found.counts
    of = f"{counts['rows']:,} rows, {counts['handed']:,} handed over, {count_things(counts['judged'], 'cause')} judged"
    if found.partition_by:
        of += f", {count_things(counts['partitions'], 'partition')}"
        if counts["unjudged"]:
            of += f" ({counts['unjudged']:,} with nothing to judge)"
    print_sentence(f"{found.verdict}: by stated causes, {found.reason or 'nothing came late'}: {of}")
    if counts["ties"]:
        ties = count_things(counts["ties"], "tie")
        print_sentence(f"{ties}: cause and effect at one position or time count as in order")


def describe_finding(row: Mapping[str, Any]) -> str:
    match row["kind"]:
        case "violation":
            chain = " -> ".join("..." if one is None else str(one) for one in row["chain"])
            return f"{row['consumer']} was handed {row['id']} after its effect {row['by']}: {chain}"
        case "duplicate":
            return f"{row['consumer']} was handed {row['id']} more than once: {row['reason']}"
        case "refused":
            return f"refused: {row['reason']}"
        case _:
            return f"{row['id']} is missing: {row['reason']}, such as {row['by']}"

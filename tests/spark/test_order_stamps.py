"""The order of tables of packets: that of a stream of the same packets, and what is missing at its root."""

from random import Random

import pyarrow as pa
import pytest

from antecede.errors import BadParameter
from antecede.sim.run import RunSpec
from antecede.spark.order.api import count_rows, missing, order, refused
from antecede.spark.stream.packets import Settings, simulated
from tests.spark.packet_steps import step


def run_of(protocol):
    return simulated(RunSpec(protocol=protocol, processes=4, messages=120, seed=3))


def make_packets(protocol, lost=(), group="g"):
    view, packets = run_of(protocol)
    rows = [row for place, row in enumerate(packets.to_pylist()) if place not in lost]
    kept = pa.Table.from_pylist(rows, packets.schema)
    return view, kept.append_column("more", pa.array([{"x": [place]} for place in range(len(kept))]))


def identities(rows):
    return [(row["receiver"], row["position"], row["sender"], row["number"]) for row in rows]


@pytest.mark.parametrize("protocol", ["matrix", "bounded", "history"])
def test_packets_come_as_a_stream_would_deliver_them(spark, protocol):
    """By the kernel, by machines with packets of their own, and by machines with labels."""
    view, packets = make_packets(protocol)
    delivered = step(None, packets.drop_columns(["more"]), 0, Settings(protocol, view.names)).rows
    shuffled = packets.take(pa.array(Random(1).sample(range(len(packets)), len(packets))))
    found = order(spark.createDataFrame(shuffled).repartition(3), protocol=protocol, processes=view.names)
    assert found.columns == [*packets.column_names, "position", "waits_for"]
    rows = found.toArrow().to_pylist()
    assert len(rows) == len(packets)
    assert sorted(identities(r for r in rows if r["number"] is not None)) == sorted(
        identities(delivered.to_pylist())
    )
    assert {row["more"]["x"][0] for row in rows} == set(range(len(packets)))
    assert not any(row["waits_for"] for row in rows)
    assert refused(found).count() == missing(found).count() == 0


@pytest.mark.parametrize("protocol", ["matrix", "fifo", "optimal"])
def test_two_lost_packets_are_named_and_all_that_they_hold_up_waits(spark, protocol):
    view, packets = make_packets(protocol, lost=(5, 9))
    table = spark.createDataFrame(packets).withColumnRenamed("stamp", "header")
    found = order(table, stamp="header", protocol=protocol, processes=view.names)
    rows = found.toArrow().to_pylist()
    assert sorted(row["position"] for row in rows if row["receiver"] == "p1") == list(
        range(sum(row["receiver"] == "p1" for row in rows))
    )
    told = missing(found).toArrow().to_pylist()
    sent = run_of(protocol)[1].to_pylist()
    lost = {(sent[place]["receiver"], sent[place]["sender"]) for place in (5, 9)}
    named = {(row["receiver"], row["sender"]) for row in told}
    # Stamps of `optimal` leave out what need not be told: nobody may know of a message that is lost.
    assert named == lost if protocol != "optimal" else named <= lost
    waiting = [row for row in rows if row["waits_for"]]
    assert len(waiting) == sum(row.waiting for row in count_rows(found).collect()) > 2
    # Held rows come last at their receivers.
    for receiver in view.names:
        own = sorted((r for r in rows if r["receiver"] == receiver), key=lambda r: r["position"])
        assert [bool(row["waits_for"]) for row in own] == sorted(bool(row["waits_for"]) for row in own)


def test_a_row_that_is_no_packet_is_refused_and_the_others_are_ordered(spark):
    view, packets = make_packets("matrix")
    rows = packets.to_pylist()
    rows[3] |= {"stamp": b"nonsense"}
    bad = rows[3]
    table = spark.createDataFrame(pa.Table.from_pylist(rows, packets.schema))
    found = order(table, protocol="matrix", processes=view.names)
    [told] = refused(found).collect()
    assert (told.receiver, told.rows) == (bad["receiver"], 1)
    assert "stamp" in told.reason or "expected" in told.reason
    assert [row.number for row in found.where("position is null").collect()] == [bad["number"]]


def test_partitions_are_systems_of_their_own(spark):
    view, packets = make_packets("matrix")
    both = pa.concat_tables(
        packets.append_column("site", pa.repeat(site, len(packets))) for site in ("eu", "us")
    )
    found = order(spark.createDataFrame(both), protocol="matrix", processes=view.names, partition_by="site")
    places = {
        site: identities(found.where(f"site = '{site}'").toArrow().to_pylist()) for site in ("eu", "us")
    }
    assert sorted(places["eu"]) == sorted(places["us"])
    assert not missing(found).count()


def test_what_is_no_table_of_packets_is_refused(spark):
    table = spark.createDataFrame([("a",)], "sender string")
    with pytest.raises(
        BadParameter, match="needs the columns stamp, receiver, number, each once: a row is a packet"
    ):
        order(table, protocol="matrix", processes=["a", "b"])
    with pytest.raises(BadParameter, match="protocol does not go with a trace"):
        order(table, protocol="matrix")
    with pytest.raises(BadParameter, match="which a stream does not see"):
        order(spark.createDataFrame(make_packets("matrix")[1]), protocol="permit", processes=["a", "b"])

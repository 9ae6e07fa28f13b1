"""The short form of `benchmarks.fuzz`: no bytes break a decoder; and that the fuzzer would tell."""

from __future__ import annotations

import time
from random import Random

import pytest

from antecede.errors import WireError
from benchmarks import fuzz
from benchmarks.corpus import corpus, mutate_bytes
from benchmarks.fuzz import PROTOCOLS_TRIED, TARGETS, targets


def test_no_bytes_break_a_decoder_or_a_process():
    seed = "short"
    print(f"seed {seed!r}")
    found = fuzz.fuzz(seed, inputs=14_000, seconds=60.0)
    assert found.broken == []
    assert min(found.inputs[name] for name in TARGETS) >= 2000
    # Both ways are taken: what is refused, and what is not.
    assert all(0 < found.refused[name] < found.inputs[name] for name in TARGETS)


def test_what_a_sound_peer_sends_is_taken():
    known = corpus(PROTOCOLS_TRIED, Random(1))
    tried = targets(known, Random(1))
    for name in ("packet", "bundle", "frame", "session", "feed", "note"):
        for data in getattr(known, f"{name}s"):
            tried[name][0](data)


def crash(data: bytes) -> None:
    if len(data) % 5 == 0:
        raise KeyError(data[:1])


def hang(data: bytes) -> None:
    if len(data) % 5 == 0:
        time.sleep(60)


def swell(data: bytes) -> None:
    if len(data) % 5 == 0:
        bytearray(2 * fuzz.MEMORY)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (crash, "KeyError"),
        (hang, "it takes longer than"),
        pytest.param(
            swell,
            "MemoryError",
            marks=pytest.mark.skipif(
                not fuzz.STATM.exists(), reason="only Linux says how large a process is"
            ),
        ),
    ],
)
def test_a_decoder_that_crashes_hangs_or_swells_is_found(monkeypatch, target, told):
    monkeypatch.setattr(fuzz, "try_packet", target)
    monkeypatch.setattr(fuzz, "PATIENCE_S", 0.05)
    found = fuzz.fuzz("planted", inputs=200, seconds=20.0, names=["packet"])
    assert len(found.broken) == 10
    assert all(line.startswith("packet ") and told in line for line in found.broken)


def test_a_finding_can_be_run_again(capsys):
    assert fuzz.main(["--again", "packet 47455420"]) == 0
    assert "version 71" in capsys.readouterr().out
    with pytest.raises(WireError):
        fuzz.again("bundle 47")


def test_mutations_come_from_the_seed():
    known = [b"one", b"another"]
    runs = [[mutate_bytes(random, known) for _ in range(50)] for random in (Random(3), Random(3))]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 20

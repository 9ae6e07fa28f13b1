"""Delays are what they are said to be, in integers, the same on every machine."""

from __future__ import annotations

import statistics
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import pytest

from antecede.errors import AntecedeError
from antecede.sim.chance import pick, stream, subset
from antecede.sim.delays import SIZE, Delay, _normal
from antecede.sim.specs import ONE, bits_per_second, duration, rate, share, size


@pytest.mark.parametrize(
    ("text", "mean_ms"),
    [
        ("constant:50ms", 50),
        ("uniform:10ms,90ms", 50),
        ("exponential:50ms", 50),
        ("lognormal:50ms,sigma=0.5", 50),
        ("lognormal:50ms,sigma=2", 50),
    ],
)
def test_a_table_has_the_mean_that_was_asked_for(text: str, mean_ms: float) -> None:
    delay = Delay.parse(text)
    assert abs(delay.mean_ns - mean_ms * 10**6) <= 1
    assert list(delay.values) == sorted(delay.values)
    assert all(type(value) is int for value in delay.values)


@pytest.mark.parametrize("text", ["uniform:10ms,90ms", "exponential:50ms", "lognormal:50ms,sigma=0.5"])
def test_draws_have_that_mean_too(text: str) -> None:
    words, delay = stream(1, text), Delay.parse(text)
    drawn = [delay.draw(words) for _ in range(50_000)]
    assert statistics.fmean(drawn) == pytest.approx(50e6, rel=0.02)


def test_exponential_quantiles_are_those_of_the_distribution() -> None:
    values = Delay.parse("exponential:1s").values
    assert values[SIZE // 2] / 1e9 == pytest.approx(0.6931, rel=1e-3)  # ln 2
    assert values[SIZE * 99 // 100] / 1e9 == pytest.approx(4.605, rel=5e-3)  # ln 100


def test_normal_quantiles_are_right_to_seven_figures() -> None:
    normal = statistics.NormalDist()
    for i in range(SIZE // 2, SIZE, 7):
        exact = Decimal(2 * i + 1) / (2 * SIZE)
        assert float(_normal(exact)) == pytest.approx(normal.inv_cdf(float(exact)), abs=2e-6)


def test_tables_do_not_depend_on_the_machine() -> None:
    texts = "exponential:50ms", "lognormal:50ms,sigma=1", "uniform:1ms,2ms"
    digest = sha256(repr([Delay.parse(text).values for text in texts]).encode()).hexdigest()
    assert digest[:16] == "14e03c6e76c1bd44"


def test_measured_delays_keep_their_quantiles(tmp_path: Path) -> None:
    file = tmp_path / "delays.txt"
    file.write_text("# measured on a Monday\n1.5\n250us\n\n3ms # slow\n40\n")
    values = Delay.parse(f"empirical:{file}").values
    assert sorted(set(values)) == [250_000, 1_500_000, 3_000_000, 40_000_000]
    assert values.count(250_000) == SIZE // 4


def test_streams_of_one_seed_are_independent_by_name() -> None:
    one, two = stream(3, "network"), stream(3, "workload")
    assert [next(one) for _ in range(5)] != [next(two) for _ in range(5)]
    assert [next(stream(3, "network")) for _ in range(2)] == [next(stream(3, "network"))] * 2


def test_a_stream_is_the_same_on_every_machine() -> None:
    words = stream(0, "network")
    assert [next(words) for _ in range(3)] == [3816264700, 1932838509, 1107992053]


def test_picks_and_subsets_are_fair() -> None:
    words = stream(5, "fair")
    picks = [pick(words, 6) for _ in range(6000)]
    assert all(900 < picks.count(i) < 1100 for i in range(6))
    assert all(len(set(subset(words, [1, 4, 7, 9], 3))) == 3 for _ in range(100))


def test_units() -> None:
    assert duration("x", "y", "1.5ms") == 1_500_000
    assert duration("x", "y", "0") == 0
    assert size("x", "y", "4kB") == 4000
    assert bits_per_second("x", "y", "10Mbit/s") == 10**7
    assert rate("x", "y", "20/s") == rate("x", "y", "20") == 50_000_000
    assert share("x", "y", "25%") == share("x", "y", "0.25") == ONE // 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "delay: '' has no name: write one of those that --help lists"),
        (
            "gamma:3ms",
            "delay: the distribution must be one of constant, uniform, exponential, lognormal, empirical, not 'gamma'",
        ),
        ("exponential", "delay: exponential needs mean: write exponential:MEAN"),
        ("exponential:50", "delay: mean must be a time such as 50ms, 200us or 1.5s, not '50'"),
        ("exponential:-5ms", "delay: mean must be a time such as 50ms, 200us or 1.5s, not '-5ms'"),
        ("exponential:5ms,6ms", "delay: exponential does not take '6ms'; it takes mean"),
        (
            "exponential:mean=5ms,mean=6ms",
            "delay: arguments must be key=value, each key once, not 'mean=6ms'",
        ),
        ("uniform:9ms,1ms", "delay: uniform:9ms,1ms must have the lesser time first"),
        ("lognormal:5ms,sigma=x", "delay: sigma must be a number above 0, at most 5, not 'x'"),
        ("lognormal:5ms,sigma=NaN", "delay: sigma must be a number above 0, at most 5, not 'NaN'"),
        (
            "empirical:no-such-file",
            "no-such-file: No such file or directory; it must be a file with one time a line",
        ),
    ],
)
def test_a_wrong_delay_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(AntecedeError) as caught:
        Delay.parse(text)
    assert str(caught.value) == sentence


def test_a_file_without_times_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "d.txt"
    file.write_text("1ms\nfast\n")
    with pytest.raises(AntecedeError, match=r"d\.txt:2: delay must be a time such as .*, not 'fast'"):
        Delay.parse(f"empirical:{file}")
    file.write_text("# nothing\n")
    with pytest.raises(AntecedeError, match="the file has no times"):
        Delay.parse(f"empirical:{file}")

"""The monitor on Spark tells what goes wrong, and nothing else."""

from examples.monitor import watch


def test_the_monitor_tells_of_an_answer_before_its_question(spark, tmp_path):
    said: list[str] = []
    watch(spark, tmp_path, ["unordered", "permit"], said.append, cut_s=2.0)
    assert said == [
        "unordered: eve was handed ann.1 after bob.1, which it comes before",
        "unordered: the run is over",
        "permit: the run is over",
    ]

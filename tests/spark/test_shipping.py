"""Workers that do not have the package get it: by `ship`, or in an archive."""

import subprocess
import tarfile
import venv
from pathlib import Path

import pyarrow
import pytest

import antecede

SHIPPED = """
import sys
from antecede.spark.session import ship

def where(batches):
    import pyarrow as pa
    for batch in batches:
        try:
            from antecede.trace import schema
            told = schema.__file__
        except ImportError as error:
            told = str(error)
        yield pa.RecordBatch.from_pydict({"where": [told] * batch.num_rows})

def ask():
    # Each worker has a directory of its own.
    places = {row["where"] for row in spark.range(4).mapInArrow(where, "where string").collect()}
    [place] = {"/".join(place.split("/")[-4:]) for place in places}
    print(place)

ask()
if "ship" in sys.argv:
    ship(spark)
    ask()
"""


@pytest.fixture
def bare(tmp_path):
    """A Python with all that is installed here but the package."""
    venv.create(tmp_path / "bare", with_pip=False)
    links = tmp_path / "links"
    links.mkdir()
    for part in Path(pyarrow.__file__).parent.parent.iterdir():
        if not part.name.startswith(("antecede", "_antecede")):
            (links / part.name).symlink_to(part)
    python = tmp_path / "bare" / "bin" / "python"
    [packages] = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (packages / "links.pth").write_text(f"{links}\n")
    lacking = subprocess.run(
        [python, "-I", "-c", "import pyarrow, antecede"], capture_output=True, text=True, check=False
    )
    assert "No module named 'antecede'" in lacking.stderr
    return python


def test_workers_get_the_package(cluster, bare):
    run = cluster(1, PYSPARK_PYTHON=str(bare), PYTHONPATH="")
    before, after = run(SHIPPED, "ship").splitlines()
    run.close()
    assert before == "No module named 'antecede'"
    assert after == "antecede.zip/antecede/trace/schema.py"


def test_workers_unpack_an_archive(cluster, bare, tmp_path):
    """As docs/cluster.md tells: what `pip install --target` makes, packed, and put on the workers' path."""
    packed = tmp_path / "packages.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        file.add(Path(antecede.__file__).parent, "antecede")
    arguments = f"--archives {packed}#packages --conf spark.executorEnv.PYTHONPATH=packages pyspark-shell"
    run = cluster(1, PYSPARK_PYTHON=str(bare), PYTHONPATH="", PYSPARK_SUBMIT_ARGS=arguments)
    [place] = run(SHIPPED).splitlines()
    run.close()
    assert place == "packages/antecede/trace/schema.py"

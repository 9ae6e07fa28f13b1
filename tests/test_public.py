"""What `import antecede` gives: few names, typed, loaded when asked for; and a log that says nothing unasked."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import antecede
from antecede import errors


def test_every_public_name_is_there():
    for name in antecede.__all__:
        assert getattr(antecede, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        _ = antecede.Nope  # type: ignore[attr-defined]
    assert antecede.NodeFailed is errors.NodeFailed


def test_every_error_that_the_page_on_nodes_names_is_exported():
    page = (Path(__file__).parent.parent / "docs" / "runtime.md").read_text()
    named = set(re.findall(r"`(\w+)`", page)) & set(errors.__all__)
    assert len(named) > 5
    assert named <= set(antecede.__all__)


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )


def test_a_machine_needs_no_event_loop():
    ended = python("""
        import sys, antecede
        assert not {"asyncio", "sqlite3", "pyarrow", "antecede.net"} & sys.modules.keys()
        antecede.Node
        assert {"asyncio", "antecede.net"} <= sys.modules.keys()
        assert not {"pyarrow", "pyspark"} & sys.modules.keys()
    """)
    assert ended.returncode == 0, ended.stderr


def test_the_library_logs_nothing_unless_it_is_asked_to():
    program = """
        import logging, sys
        {}
        import antecede.net
        logging.getLogger("antecede.net.driver").error("something is wrong")
    """
    assert python(program.format("")).stderr == ""
    assert "something is wrong" in python(program.format("logging.basicConfig()")).stderr


def test_a_type_checker_knows_the_node(tmp_path):
    """`antecede.Node` is no `Any`: what is wrong is found, and what is right is not."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import antecede

            async def main() -> None:
                async with antecede.Node("a", ["a"]) as node:
                    sent = await node.send("a", b"fine")
                    reveal_type(node)
                    reveal_type(sent.to)
                    await node.send("a", "wrong")
                    antecede.Node("a", ["a"], join=True)
                    antecede.Node.join("c", ["a"], groups=["all"], protocol="matrix")
                    async for message in node:
                        reveal_type(message.payload)
        """)
    )
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--follow-imports=silent",
            str(program),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": ""},
        cwd=tmp_path,
    )
    told = checked.stdout
    assert 'Revealed type is "antecede.net.node.Node"' in told, told + checked.stderr
    assert told.count("error:") == 2, told
    assert 'Revealed type is "builtins.tuple[builtins.str, ...]"' in told or "tuple[str, ...]" in told
    assert 'Revealed type is "builtins.bytes"' in told or 'Revealed type is "bytes"' in told
    assert 'incompatible type "str"' in told
    assert 'Unexpected keyword argument "join"' in told


@pytest.mark.parametrize("module", ["antecede", "antecede.testing", "antecede.net", "antecede.errors"])
def test_every_public_name_says_what_it_is(module):
    found = importlib.import_module(module)
    values = {
        name: getattr(found, name) for name in found.__all__ if name not in ("__version__", "PROTOCOLS")
    }
    assert [name for name, value in values.items() if not vars(value).get("__doc__", value.__doc__)] == []

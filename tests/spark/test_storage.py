"""What is written is there whole, or what was there before is: on a disk, and in a storage that Arrow mocks."""

import uuid

import pytest
from pyarrow import fs

from antecede.errors import BadParameter, CannotWrite
from antecede.storage import all_whole, join, place, whole


def put(path, text):
    system, inside = place(path)
    system.create_dir(inside, recursive=True)
    with system.open_output_stream(f"{inside}/part-0") as file:
        file.write(text.encode())


def write_and_fail(paths, replace=False, look=lambda: None):
    with all_whole(paths, replace=replace) as asides:
        for aside in asides:
            put(aside, "new")
        look()
        raise ZeroDivisionError


def read_files(path):
    """Every file below, with what it says."""
    system, inside = place(path)
    listed = system.get_file_info(fs.FileSelector(inside, recursive=True, allow_not_found=True))
    files = [info.path for info in listed if info.type == fs.FileType.File]
    return {
        name.removeprefix(inside).lstrip("/"): system.open_input_file(name).read().decode() for name in files
    }


@pytest.fixture(params=["file", "mock"])
def root(request, tmp_path):
    return f"file:{tmp_path}" if request.param == "file" else f"mock://{uuid.uuid4().hex}/{uuid.uuid4().hex}"


def test_a_directory_is_there_when_it_is_whole(root):
    target = join(root, "new", "table")
    with whole(target) as aside:
        put(join(aside, "rows"), "one")
    assert read_files(root) == {"new/table/rows/part-0": "one"}
    with pytest.raises(BadParameter, match="is there already"), whole(target):
        pass


def test_what_fails_leaves_nothing(root):
    with pytest.raises(ZeroDivisionError):
        write_and_fail([join(root, "a"), join(root, "b")])
    assert read_files(root) == {}


def test_what_is_replaced_is_there_until_the_new_is_whole(root):
    target = join(root, "table")
    with whole(target) as aside:
        put(aside, "old")
    seen = []
    with pytest.raises(ZeroDivisionError):
        write_and_fail([target], replace=True, look=lambda: seen.append(read_files(target)))
    assert seen == [{"part-0": "old"}]
    assert read_files(root) == {"table/part-0": "old"}
    with whole(target, replace=True) as aside:
        put(join(aside, "rows"), "new")
    assert read_files(root) == {"table/rows/part-0": "new"}


def test_several_directories_are_there_together(root):
    with all_whole([join(root, "a"), join(root, "b")]) as asides:
        for aside, text in zip(asides, "ab", strict=True):
            put(aside, text)
    assert read_files(root) == {"a/part-0": "a", "b/part-0": "b"}


@pytest.mark.parametrize(
    ("old", "left"), [({}, "nothing was left there"), ({"a/part-0": "old"}, "what was there is unchanged")]
)
def test_the_first_goes_back_if_the_second_cannot_be_renamed(tmp_path, old, left):
    root = f"file:{tmp_path}"
    for _ in old:
        put(join(root, "a"), "old")

    def write():
        with all_whole([join(root, "a"), join(root, "b")], replace=bool(old)) as asides:
            for aside in asides:
                put(aside, "new")
            put(join(root, "b"), "of someone else who was faster")

    with pytest.raises(CannotWrite, match=f"/b: cannot write: Directory not empty; {left}"):
        write()
    assert read_files(root) == {**old, "b/part-0": "of someone else who was faster"}


def test_an_error_says_where_the_files_of_a_storage_are(monkeypatch):
    target = f"mock://{uuid.uuid4().hex}/table"
    put(target, "old")
    aside = ""

    def write():
        nonlocal aside
        with whole(target, replace=True) as aside:
            put(aside, "new")
            # Someone else replaces it, too, and is faster: what was to be removed is not there.
            system, inside = place(target)
            system.delete_dir(inside)

    with pytest.raises(CannotWrite, match="the new files are in"):
        write()
    assert read_files(aside) == {"part-0": "new"}

import pytest

from normlab.measure import files


def test_looking_whether_a_file_can_be_written_leaves_none_behind(tmp_path):
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("old")
    link.symlink_to(tmp_path / "target.json")
    files.check_writable(there, tmp_path / "new.json", link, None)
    assert there.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.json", "there.json"]
    assert link.is_symlink()


def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(tmp_path):
    with pytest.raises(OSError, match="no_such_folder"):
        files.check_writable(None, tmp_path / "no_such_folder" / "x.json")


def test_an_unknown_record_is_named():
    with pytest.raises(FileNotFoundError, match=r"no record 'x'; there are apex_recompute_h200, .*sanitizers_h200"):
        files.record("x")

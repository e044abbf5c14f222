from pathlib import Path

from dspine_cluster.miniature.runlog import log


def test_lines_are_appended(tmp_path: Path) -> None:
    log(tmp_path, "one")
    log(tmp_path, "two")
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"

from __future__ import annotations

import pytest

from dspine_cluster.command import run_command
from dspine_cluster.errors import ConfigError, DspineError


@pytest.mark.parametrize("error", [ConfigError("mend this"), OSError(28, "No space left", "file")])
def test_what_the_caller_can_mend_is_one_line_and_status_2(
    error: DspineError | OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_command(fail)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_bug_of_our_own_keeps_its_traceback() -> None:
    def fail() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        run_command(fail)

"""The token in front of a folder: it only rises, whoever asks, and whatever the folder is called."""

import subprocess
import sys
from pathlib import Path

import pytest

from samza_azure import ConfigError, CorruptState, Superseded, check_token
from samza_azure.library.fencing import RECORD, TOKEN


def test_a_folder_remembers_the_highest_token_and_refuses_lower_ones(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    assert [check_token(folder, token) for token in (7, 7, 9)] == [7, 7, 9]
    with pytest.raises(Superseded, match=r"with token 9, has .*; this one has token 8") as refused:
        check_token(folder, 8)
    remedy = str(refused.value).rpartition("delete ")[2].rstrip(".")
    Path(remedy).unlink()
    assert check_token(folder, 8) == 8


def test_the_token_of_the_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "3000001")
    assert check_token(f"file://{tmp_path}/a") == check_token(f"file:{tmp_path}/a") == 3000001
    assert (tmp_path / "a" / RECORD).read_text() == "3000001\n"
    for wrong, says in (("", "is not set"), ("x", "is no token")):
        monkeypatch.setenv(TOKEN, wrong)
        with pytest.raises(ConfigError, match=f"{says}.*under samza-azure guard"):
            check_token(tmp_path)


def test_what_is_no_folder_here_and_what_is_no_record_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder that can be locked"):
        check_token("abfss://c@account.dfs.core.windows.net/checkpoint", 1)
    (tmp_path / RECORD).write_text("not a number")
    with pytest.raises(CorruptState, match="No token is in this file"):
        check_token(tmp_path, 1)


def test_processes_that_check_at_the_same_time_never_let_a_lower_token_follow_a_higher_one(tmp_path: Path) -> None:
    program = """
import sys
from samza_azure import Superseded, check_token
for token in range(int(sys.argv[2]), 60, 4):
    try:
        check_token(sys.argv[1], token)
    except Superseded:
        pass
    else:
        with open(sys.argv[1] + "/passed", "a") as passed:
            passed.write(f"{token}\\n")
"""
    several = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(first)]) for first in range(4)]
    assert [each.wait() for each in several] == [0, 0, 0, 0]
    assert (tmp_path / RECORD).read_text() == f"{max(map(int, (tmp_path / 'passed').read_text().split()))}\n"

"""What `guard` refuses before it reaches an account, and where the other commands find its group."""

import sys
from pathlib import Path

import pytest

from samza_azure import ConfigError, cli
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.job import guarded, load_seen
from samza_azure.config import Config

CONNECT = "UseDevelopmentStorage=true"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "A guard needs a name and a command: samza-azure guard nightly -- "),
        (["nightly"], "A guard needs a name and a command"),
        (["nightly", "--", "no-such-program-here"], "There is no command 'no-such-program-here' on this machine"),
        (["nightly", "--", sys.executable, "--deploy-mode", "cluster"], "where a guard cannot end it"),
        (["nightly", "--", sys.executable, "--deploy-mode=cluster"], "where a guard cannot end it"),
        (["night ly", "--", sys.executable], "The name 'night ly' cannot be used"),
        (["--check-token", "/"], "SAMZA_AZURE_TOKEN is not set"),
    ],
)
def test_what_cannot_be_guarded_is_refused(monkeypatch: pytest.MonkeyPatch, words: list[str], says: str) -> None:
    monkeypatch.setenv(VARIABLE, CONNECT)
    with pytest.raises(ConfigError, match=says):
        cli.app(["guard", *words], standalone_mode=False)


def test_without_an_account_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=f"needs the environment variable {VARIABLE}"):
        cli.app(["guard", "nightly", "--", sys.executable], standalone_mode=False)


def test_other_commands_find_the_group_of_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, CONNECT)
    monkeypatch.chdir(tmp_path)
    ours = guarded("nightly")
    assert load_seen(Path("guard:nightly")) == ours
    assert (ours.storage.container, ours.path.name) == ("nightly-guard", "guard:nightly")
    (tmp_path / "job.toml").write_text(
        f'app = {{ name = "nightly", main = "pipeline:app" }}\nazure.storage.connect = "{CONNECT}"\n'
    )
    assert Config.load("job.toml").storage.container != ours.storage.container


def test_the_token_of_a_command_is_checked_by_a_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = []
    for token in ("2000001", "1000001"):
        monkeypatch.setenv("SAMZA_AZURE_TOKEN", token)
        monkeypatch.setattr(sys, "argv", ["samza-azure", "guard", "--check-token", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        codes.append(ended.value.code)
    said = capsys.readouterr()
    assert (codes, said.out) == ([0, 1], "2000001\n")
    assert "A later start of the guarded command, with token 2000001" in said.err

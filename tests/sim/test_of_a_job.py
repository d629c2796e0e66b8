"""`python -m simulator JOB` plays the job's own timings, and ends with the figures that are needed to plan a fleet."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samza_azure.cli import main
from samza_azure.group.timing import PROFILES
from simulator.__main__ import app
from simulator.simulate import simulate_job
from simulator.world import World, draw
from tests.sim.mutants import MUTANTS

JOB = """
app = { name = "mine", main = "none:none" }
azure.storage.connect = "${NOT_SET}"
job.coordinator.heartbeat.timeout = "9 s"
"""


def run(job: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulator", *([str(job)] if job.name else []), *options])
    with pytest.raises(SystemExit) as ended:
        main(app)
    return int(ended.value.code or 0)


def test_simulating_a_job_prints_fail_over_kills_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    # In both a processor with tasks dies: the fail-over of a standby without any takes 0.0 s.
    assert run(job, monkeypatch, "--seed", "5", "--seeds", "2", "--hours", "0.02") == 0
    *histories, head, worst, kills, rows = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in histories] == ["seed 5", "seed 6"]
    assert head.startswith("2 histories") and head.endswith("a fleet of 3; heartbeat 2 s, dead after 9 s.")
    seen = re.findall(r"([0-9.]+) s of (?:the leader|a follower) \(at most ([0-9.]+) s\)", worst)
    assert seen and all(0 < float(took) < 1.5 * float(bound) for took, bound in seen)
    assert int(re.findall(r"kills +([0-9]+)", kills)[0]) > 0
    assert re.fullmatch(r"rows checked +[1-9][0-9,]*: lost 0, doubled 0", rows)


def test_the_job_s_own_timings_are_played() -> None:
    slow = replace(PROFILES["fast"], heartbeat_timeout_s=4.0)
    assert World(replace(draw(1), timing=slow)).timing == slow
    assert World(draw(1)).timing == PROFILES[draw(1).profile]


def test_a_violation_is_printed_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known mistake is put in."""
    said: list[str] = []
    mutant = next(each for each in MUTANTS if each.name == "no processors are passed on to the assignment")
    mutant.mistake(monkeypatch)
    assert not simulate_job(
        said.append, "job.toml", "default", PROFILES["default"], processors=3, seeds=[5], hours=0.02
    )
    assert (
        said[-1].splitlines()[-1]
        == "    replay: python -m simulator job.toml --seed 5 --seeds 1 --processors 3 --hours 0.02"
    )


def test_a_job_whose_group_cannot_be_simulated_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its coordinator is the user's own, or it is a group of one and several processors are asked for."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "factory_elsewhere.py").write_text("class Elsewhere:\n    get_job_coordinator = print")
    job = tmp_path / "job.toml"
    for factory, said in (
        ("factory_elsewhere.Elsewhere", "keeps its group elsewhere than in the account"),
        ("samza_azure.PassthroughJobCoordinatorFactory", "a job has one processor"),
    ):
        job.write_text(f'{JOB}job.coordinator.factory = "{factory}"\n')
        assert run(job, monkeypatch, "--processors", "2") == 2
        assert said in capsys.readouterr().err


def test_seeds_are_for_a_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path(), monkeypatch, "--seeds", "3") == 2
    assert "--seeds is for a job: python -m simulator job.toml --seeds 20." in capsys.readouterr().err

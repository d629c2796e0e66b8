"""How much of the machine's processors nobody uses."""

import os
from pathlib import Path

import pytest

from samza_azure.machine import idle
from samza_azure.machine.idle import IdleCores


def at(path: Path, idle_ticks: int, waiting_ticks: int) -> None:
    path.write_text(f"cpu  7 0 7 {idle_ticks} {waiting_ticks} 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")


def test_idle_time_and_waiting_for_a_disk_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat, now = tmp_path / "stat", iter([10.0, 12.0, 13.0])
    monkeypatch.setattr(idle, "STAT", stat)
    monkeypatch.setattr(idle, "boot_time", lambda: next(now))
    second = os.sysconf("SC_CLK_TCK")
    at(stat, 0, 0)
    cores = IdleCores()
    at(stat, 2 * second, second)
    assert cores.since_last_call() == 1.5
    assert cores.since_last_call() == 0.0


def test_a_machine_that_does_not_say_it_is_taken_for_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(idle, "STAT", tmp_path / "none")
    assert IdleCores().since_last_call() == os.cpu_count()

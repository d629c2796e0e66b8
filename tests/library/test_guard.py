"""When a guard ends its command although its heartbeats arrive. `tests/fleet/test_guard.py` has the processes."""

from samza_azure import Config
from samza_azure.group.actions import CONTROL
from samza_azure.group.control import Control
from samza_azure.group.tasks import PATIENCE
from samza_azure.group.timing import OUT_OF_REACH, PROFILES
from samza_azure.group.view import Failing, OwnIncarnation, Settings, View
from samza_azure.library.factory import settings
from samza_azure.library.guard import HEARS_BEATS, HEARS_S, is_blind, with_time_to_end

JOB = 'app = { name = "n", main = "guard:command" }\nazure.storage.connect = "UseDevelopmentStorage=true"\n'


def test_a_member_that_does_not_hear_from_the_leader_or_cannot_read_the_blob_is_blind() -> None:
    view = View(Settings("p"), OwnIncarnation("i"))
    assert is_blind(view, 100.0)
    view.others.leader_read_at = 100.0
    assert not is_blind(view, 100.0 + HEARS_S)
    assert is_blind(view, 100.1 + HEARS_S)
    view.own.control = Control("group")
    view.calls.failing[CONTROL] = Failing(OUT_OF_REACH, 0.0)
    assert is_blind(view, 100.0)


def test_a_blind_member_ends_its_command_before_anybody_may_start_it() -> None:
    """It is marked dead when it has not adopted a version for `barrier.timeout`, and its successor waits for
    `PATIENCE` times `task.shutdown.ms` at most.
    """
    for timing in PROFILES.values():
        hears_s = (
            max(HEARS_S, HEARS_BEATS * timing.heartbeat_s) + timing.heartbeat_s
        )  # the permit is looked at per beat
        assert hears_s < timing.barrier_timeout_s
        for shutdown_s in (0.0, 30.0, 600.0):
            config = with_time_to_end(Config.parse(f"{JOB}task.shutdown.ms = {shutdown_s * 1000:.0f}"))
            assert hears_s + shutdown_s < PATIENCE * settings("p", config).shutdown_s

"""Known mistakes of coordinators, each with the invariant that must catch it and a seed in which it does.

Numbers B1 to B28 are the defects of Samza's coordinator on Azure. A mutant that no seed kills would mean that the
simulator is blind, or that what it removes is not needed. One that another fence would hide is played without that
fence.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from simulator.scenario import Scenario
from simulator.world import play
from tests.config import test_config
from tests.group import test_drain, test_late_answers, test_membership
from tests.logs import test_source_log, test_task_log
from tests.sim import mistakes_of_others as others
from tests.sim import mistakes_of_samza as samza
from tests.sim import mistakes_of_the_review as review
from tests.sim import test_documented_names

Mistake = Callable[[pytest.MonkeyPatch], None]
#: So many seeds may a mistake live. The pinned one is tried first, since another change may have moved its history.
SEEDS = 60

USUAL = ("crash", "supervisor freezes", "machine freezes", "leaves", "joins", "outage", "cut off")
QUIET = ("leaves",)
BOTH = (others.without_if_match, others.without_lease_id)


@dataclass(frozen=True)
class Mutant:
    """`mistake` is made; `killed_by` begins the message of what must notice, in this seed and others."""

    name: str
    killed_by: str
    mistake: Mistake
    seed: int
    faults: tuple[str, ...] = USUAL
    without: tuple[Mistake, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # of the scenario

    @property
    def whose(self) -> str:
        """The project that made it: the mistake's docstring begins with that."""
        return (self.mistake.__doc__ or "").partition(":")[0]

    def scenario(self, seed: int) -> Scenario:
        """A small fleet under the faults that the mistake cannot bear."""
        dice = Random(f"mutant {seed}")
        weather = {name: dice.choice([0.0, 0.05]) for name in ("tail", "refused", "lost", "late", "slow_batch")}
        small = Scenario(
            seed=seed,
            style="storm",
            processors=3,
            sources=2,
            counts=1,
            profile="default",
            fault_s=60.0,
            every_s=10.0,
            faults=self.faults,
            aimed=dice.choice([0.0, 0.5]),
            slow_release=0.0,
            clocks=False,
            **weather,
        )
        return replace(small, **self.more)

    def violation(self, seed: int, *, made: bool = True) -> str | None:
        """What a seed finds, with the mistake made or, to compare, without it."""
        with pytest.MonkeyPatch.context() as patch:
            for each in (*self.without, self.mistake) if made else self.without:
                each(patch)
            return play(self.scenario(seed)).violation

    def killer(self) -> tuple[int, str] | None:
        """The first seed from the pinned one on in which the named invariant notices, and what it says."""
        for seed in range(self.seed, self.seed + SEEDS):
            found = self.violation(seed)
            if found is not None and found.startswith(f"{self.killed_by}:"):
                return seed, found
        return None

    def kills(self, seed: int) -> bool:
        """The named invariant notices, and there is nothing to notice without the mistake."""
        found = self.violation(seed)
        return found is not None and found.startswith(f"{self.killed_by}:") and self.violation(seed, made=False) is None


CLEAR = {"tail": 0.0, "refused": 0.0, "lost": 0.0, "late": 0.0}
MILD = {
    "style": "mild",
    "tail": 0.01,
    "refused": 0.005,
    "lost": 0.005,
    "late": 0.0,
    "slow_batch": 0.0,
    "fault_s": 120.0,
}
LAZY = {"slow_release": 0.5}
BUSILY = {"style": "busy", "every_s": 1.0, "fault_s": 120.0}
CROWD = {"processors": 5, "sources": 1, "counts": 1}

NOTICES = CLEAR | {"slow_batch": 0.0, "aimed": 0.0, "every_s": 40.0, "fault_s": 240.0}

MUTANTS = [
    Mutant("no processors are passed on to the assignment", "L1", samza.no_processors_are_passed_on, 0, QUIET),
    Mutant("blind retry of a heartbeat", "S3", samza.blind_retry_of_a_beat, 0),
    Mutant("no self-stop", "S4", samza.no_self_stop, 0),
    Mutant(
        "leaving waits for the storage",
        "L1",
        samza.leaving_waits_for_the_storage,
        0,
        ("leaves", "cut off"),
        more={"profile": "eco", "fault_s": 240.0},
    ),
    Mutant("lease, row and work stop in this order", "Order", samza.lease_before_work, 0, QUIET),
    Mutant("no failover during a barrier", "L1", samza.nobody_follows_during_a_barrier, 2, ("crash, other id",)),
    Mutant(
        "another model under the same version",
        "S1",
        samza.the_same_version_again,
        0,
        without=(samza.without_the_look_at_owners,),
    ),
    Mutant(
        "a barrier without an end",
        "L2",
        samza.a_barrier_without_an_end,
        0,
        (),
        without=(review.cut_off_keeps_its_tasks,),
        more=MILD,
    ),
    Mutant("any incarnation of a processor will do", "L1", samza.any_life_will_do, 1, ("crash",)),
    Mutant("a newcomer counts from zero", "S1", samza.a_newcomer_counts_from_zero, 0),
    Mutant("no change before the first END", "Exit", samza.no_change_before_the_first_end, 3),
    Mutant("more processors than tasks", "Exit", samza.too_many_processors, 0, QUIET, more=CROWD),
    Mutant("processors without a task exit", "Exit", samza.the_surplus_goes, 0, QUIET, more=CROWD),
    Mutant("a refused leader goes on", "S6", samza.zombie_leader, 49),
    Mutant("losing the leadership ends the processor", "Exit", samza.losing_the_leadership_ends_the_processor, 36),
    Mutant("a renewal is tried once", "S11", samza.a_renewal_is_tried_once, 14, (), more=MILD | {"refused": 0.1}),
    Mutant("a refused heartbeat is fatal", "Exit", samza.a_refused_beat_is_fatal, 0),
    Mutant("a refused leader row is fatal", "Exit", samza.a_refused_leader_row_is_fatal, 25),
    Mutant("a row is only inserted", "L1", samza.a_row_is_only_inserted, 4, ("crash",)),
    Mutant("an error is the end", "Exit", samza.an_error_is_the_end, 0),
    Mutant("leaving twice is an error", "Exit", samza.leaving_twice_is_an_error, 4, QUIET),
    Mutant("a leader elects itself", "S11", samza.a_leader_elects_itself, 0, QUIET),
    Mutant("no fence at a take-over", "S2", samza.no_fence_at_take_over, 0, ("crash",)),
    Mutant("no debounce", "Debounce", samza.no_debounce, 7),
    Mutant(
        "other partitions are not noticed",
        "S12",
        samza.other_partitions_are_not_noticed,
        1,
        ("old code",),
        more={"sources": 4},
    ),
    Mutant("one failure fails the run", "Retry", samza.one_failure_fails_the_run, 1, ("bad machine",)),
    Mutant("a task goes back to where it failed", "Retry", samza.a_task_goes_back, 1, ("bad machine",)),
    Mutant(
        "a row reports tasks of a former life",
        "Leak",
        samza.a_row_tells_of_a_former_life,
        26,
        ("supervisor freezes", "cut off"),
        more={"slow_release": 0.5, "slow_batch": 0.3, "every_s": 4.0, "fault_s": 120.0},
    ),
    Mutant("a break with a period", "L2", others.break_with_a_period, 0, (), more=MILD),
    Mutant("deadlines from the answer", "S4", others.counted_from_the_answer, 0),
    Mutant("an error counts as accepted", "S4", others.trouble_is_an_etag, 0),
    Mutant("a failed claim is a claim", "S1", others.a_failed_claim_is_a_claim, 2, without=BOTH, more={"late": 0.0}),
    Mutant(
        "one lease id for all",
        "S1",
        others.one_lease_id_for_all,
        2,
        without=(others.without_if_match,),
        more={"late": 0.0},
    ),
    Mutant("no deadline of the lease", "S1", others.no_deadline_of_the_lease, 1, without=BOTH, more={"late": 0.0}),
    Mutant("blind retry of a publish", "S1", others.blind_retry_of_a_publish, 22),
    Mutant("the transport tries again", "S11", others.the_transport_tries_again, 86, (), more=MILD | {"lost": 0.1}),
    Mutant("a failed call is made again at once", "Cost", others.no_back_off, 1, ("outage",)),
    Mutant("calls without an end", "L1", others.calls_without_an_end, 0, ("outage",)),
    Mutant("no failover", "L1", others.nobody_follows_the_leader, 0, ("crash, other id",)),
    Mutant("age by the clock", "S10", others.age_by_the_clock, 5, ("outage",)),
    Mutant("age by the wall clock", "S10", others.age_by_the_wall, 0, (), more={"clocks": True}),
    Mutant("judging while cut off", "S10", others.marks_while_cut_off, 5, ("outage",)),
    Mutant(
        "an unfenced dead mark",
        "S10",
        others.an_unfenced_dead_mark,
        103,
        ("supervisor freezes", "cut off"),
        more={"tail": 0.2, "every_s": 3.0, "fault_s": 120.0, "profile": "fast"},
    ),
    Mutant(
        "rows are deleted by name",
        "S10",
        others.rows_are_deleted_by_name,
        3,
        ("drain", "drain", "crash", "leaves"),
        more={"every_s": 3.0, "fault_s": 200.0, "aimed": 0.5},
    ),
    Mutant("torn scans", "Overlap", others.torn_scans, 1, ()),
    Mutant("every version stops the world", "S5", others.stop_the_world, 0),
    Mutant("an owner that does not run", "Patience", others.the_owner_that_does_not_run, 1, ("container dies",)),
    Mutant("appends without a position", "S2", others.unconditional_append, 0),
    Mutant(
        "an older writer takes the log back",
        "S2",
        others.takes_the_log_back,
        38,
        ("machine freezes", "joins", "leaves"),
        more={"every_s": 1.0, "sources": 6, "aimed": 0.8, "fault_s": 150.0},
    ),
    Mutant("a log is created again", "S8", others.created_again, 7, more={"late": 0.1}),
    Mutant("work without a permit", "S4", others.work_without_a_permit, 20, more={"slow_batch": 0.2}),
    Mutant("silence is idleness", "S7", others.silence_is_idleness, 1, more={"sources": 3}),
    Mutant("the fastest producer counts", "S7", others.the_fastest_producer_counts, 0, more={"sources": 3}),
    Mutant("FLUSH before all stand still", "S12", others.flushes_too_early, 6),
    Mutant(
        "the freeze of another drain",
        "S12",
        others.any_freeze_will_do,
        2,
        ("drain", "cancel", "drain"),
        more={"style": "busy", "sources": 1, "every_s": 0.8, "fault_s": 200.0, "aimed": 0.0},
    ),
    Mutant("DRAINED before the logs are", "S12", others.drained_when_all_are_told, 0),
    Mutant("a gainer does not wait", "Overlap", others.the_gainer_does_not_wait, 1, faults=("leaves", "joins")),
    Mutant("the predecessors are forgotten", "Overlap", others.predecessors_are_forgotten, 2),
    Mutant("dead after three timeouts", "Bound", others.dead_after_three_timeouts, 0, faults=QUIET),
    Mutant("a leader is suspected three times late", "Bound", others.a_leader_is_suspected_late, 4, faults=()),
    Mutant(
        "followers that are no successors wait long",
        "Bound",
        review.followers_that_are_no_successors_wait_long,
        0,
        ("crash, other id",),
        more=CLEAR | {"every_s": 40.0, "fault_s": 240.0, "aimed": 0.0, "processors": 1},
    ),
    Mutant(
        "tasks wait for the next container", "Bound", review.tasks_wait_for_the_next_container, 2, QUIET, more=CLEAR
    ),
    Mutant("a container that hangs counts", "Bound", review.a_container_that_hangs_counts, 2, QUIET, more=CLEAR),
    Mutant("rows are read from a replica", "Fresh", review.rows_are_read_from_a_replica, 25),
    Mutant("calls are kept", "Leak", review.calls_are_kept, 0, ("joins",)),
    Mutant(
        "an outage quadruples the calls",
        "Cost",
        review.an_outage_quadruples_the_calls,
        24,
        ("outage",),
        more={"every_s": 60.0, "fault_s": 240.0},
    ),
    Mutant("released while it works", "Overlap", review.released_while_it_works, 2, ("leaves", "joins"), more=LAZY),
    Mutant(
        "the gainer waits forever",
        "Patience",
        review.the_gainer_waits_for_ever,
        24,
        ("container freezes", "joins", "leaves"),
        more={"every_s": 2.0},
    ),
    Mutant(
        "a task without a permit waits like a failed one",
        "Patience",
        review.an_interruption_counts_as_failures,
        3,
        ("supervisor freezes", "cut off", "outage"),
    ),
    Mutant("FLUSH takes the last end", "S12", review.flush_takes_the_last_end, 1, ("drain",), more={"audited": True}),
    Mutant(
        "a drain waits for a task that has ended",
        "L1",
        review.a_drain_waits_for_an_ended_task,
        0,
        (),
        more={"audited": True, "handled": True, "shuts_down": True},
    ),
    Mutant("a drain moves tasks", "S12", review.draining_moves_tasks, 0, ("drain", "joins", "leaves"), more=BUSILY),
    Mutant("tasks start without a permit", "S4", review.starts_without_a_permit, 1, ("outage", "cut off")),
    Mutant("churn never rises", "S11", review.churn_never_rises, 8, ("supervisor freezes",)),
    Mutant("no successors are named", "L1", review.no_successors_are_named, 0, QUIET),
    Mutant("the first start is never over", "L1", review.first_is_never_cleared, 0, QUIET),
    Mutant("clean-up before the others have left", "S12", review.cleans_up_at_once, 0, ("drain",)),
    Mutant("every drain is accepted", "S12", review.every_drain_is_accepted, 104),
    Mutant("a stop keeps the freeze", "S12", review.a_stop_keeps_the_freeze, 0, ("drain", "stop"), more=BUSILY),
    Mutant("ages survive an outage", "S10", review.ages_survive_an_outage, 5, ("outage",)),
    Mutant("a processor that is cut off keeps its tasks", "L2", review.cut_off_keeps_its_tasks, 0, (), more=MILD),
    Mutant("the lease is the leadership", "Leader", review.the_lease_is_the_leadership, 0, ("cut off",)),
    Mutant("the permit is the leadership", "Leader", review.the_permit_is_the_leadership, 0, ("cut off",)),
    Mutant(
        "the next leader does not wait",
        "Leader",
        review.the_next_leader_does_not_wait,
        9,
        ("supervisor freezes",),
        more={"profile": "fast", "tail": 0.2, "lost": 0.1, "every_s": 4.0},
    ),
    Mutant("a report of being cut off is believed at once", "S10", review.cut_off_is_believed_at_once, 21, ("outage",)),
    Mutant("a newcomer gets nothing", "Idle", review.a_newcomer_gets_nothing, 57, ("joins",)),
    Mutant("the surplus is forgotten", "Owned", review.the_surplus_is_forgotten, 0),
    Mutant("the assignment forgets the present owners", "Least moves", others.forgets_who_has_what, 0),
    Mutant("nobody warms up", "L1", others.nobody_warms_up, 12, ("joins",), more=CLEAR | {"replicas": 1}),
    Mutant(
        "a task moves before its state",
        "Warm",
        others.moves_before_its_state,
        1,
        ("joins", "leaves"),
        more=CLEAR | {"replicas": 1, "fault_s": 120.0},
    ),
    Mutant("a damaged drain is obeyed", "Vandal", review.a_damaged_drain_is_obeyed, 0, ()),
    Mutant("a damaged drain raises", "Exit", review.a_damaged_drain_raises, 11, ("garbage",)),
    Mutant(
        "a processor that will go gets no new task and keeps the others",
        "Notice",
        others.what_goes_keeps_its_tasks,
        0,
        ("noticed",),
        more=NOTICES,
    ),
    Mutant(
        "a leader that will go leads on",
        "Notice",
        others.a_leader_that_goes_leads_on,
        0,
        ("noticed, the leader",),
        more=NOTICES,
    ),
    Mutant(
        "a withdrawn notice costs the leadership",
        "Order",
        others.a_withdrawn_notice_costs_the_leadership,
        0,
        ("notice withdrawn",) * 3 + ("crash",),
        more=NOTICES | CROWD | {"every_s": 15.0},
    ),
]


@dataclass(frozen=True)
class Elsewhere:
    """A mistake that no simulation shows, because it lies in names or words, or behind another fence, as its docstring
    says; and the ordinary test that shows it."""

    name: str
    mistake: Mistake
    test: Callable[[], None]

    @property
    def whose(self) -> str:
        """Who made it."""
        return (self.mistake.__doc__ or "").partition(":")[0]


def _samzas_names(patch: pytest.MonkeyPatch) -> None:
    """B24: names lose their hyphens, so two applications share a container."""

    def name(app_name: str, app_id: str) -> str:
        return "samza" + re.sub("[^A-Za-z0-9]", "", f"app-{app_name}-{app_id}")

    patch.setattr(test_config, "default_container", name)
    patch.setattr(test_config, "default_table", name)


def _a_class_in_the_wrong_package(patch: pytest.MonkeyPatch) -> None:
    """B25: the documents name a factory class that cannot be loaded."""
    text = test_documented_names.documents()
    patch.setattr(
        test_documented_names, "documents", lambda: f"{text} or `samza_azure.azure.AzureJobCoordinatorFactory`"
    )


ELSEWHERE = [
    Elsewhere(
        "two applications, one container",
        _samzas_names,
        test_config.test_two_applications_that_look_alike_have_two_containers_and_two_tables,
    ),
    Elsewhere(
        "a documented class that does not exist",
        _a_class_in_the_wrong_package,
        test_documented_names.test_every_dotted_name_in_the_documents_can_be_imported,
    ),
    Elsewhere(
        "ages survive the observer's pause",
        review.ages_survive_a_pause,
        test_membership.test_a_leader_that_was_frozen_forgets_its_suspicions,
    ),
    Elsewhere(
        "a late dead mark counts for the next incarnation",
        review.a_late_mark_kills_the_next_life,
        test_late_answers.test_marking_a_former_incarnation_dead_does_not_kill_the_next_one,
    ),
    Elsewhere(
        "a late read revives an incarnation",
        review.a_late_read_brings_a_life_back,
        test_late_answers.test_a_read_that_was_sent_before_a_scan_does_not_bring_a_former_incarnation_back,
    ),
    Elsewhere(
        "a late scan revives an incarnation",
        review.a_scan_brings_the_dead_back,
        test_late_answers.test_a_scan_sent_before_a_dead_mark_does_not_revive_the_incarnation,
    ),
    Elsewhere(
        "a request for a new run is granted to each incarnation",
        review.a_wish_is_granted_to_each_life,
        test_late_answers.test_a_wish_for_a_new_run_is_granted_once_also_if_the_processor_rejoins,
    ),
    Elsewhere(
        "a drain believes any generation",
        review.drain_believes_any_generation,
        test_drain.test_the_word_of_a_former_owner_does_not_count,
    ),
    Elsewhere(
        "an append compares no bytes",
        review.append_compares_no_bytes,
        test_source_log.test_two_producers_at_one_position_never_mistake_each_others_rows_for_their_own,
    ),
    Elsewhere(
        "no look for a later blob",
        review.no_look_for_a_later_blob,
        test_task_log.test_an_owner_that_rolls_its_log_after_its_successor_is_superseded,
    ),
]

__all__ = ["ELSEWHERE", "MUTANTS", "SEEDS", "Elsewhere", "Mutant"]

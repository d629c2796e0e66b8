"""The durations that the protocol waits for. Seconds of the host's own clock, differences only."""

from dataclasses import dataclass

#: How long Azure grants the control blob's lease. A fence, not the failure detector.
LEASE_S = 60
#: The holder renews this long after it last asked.
RENEW_EVERY_S = 20.0
#: The holder counts from before it asked, and stops this long before the service could let go.
LEASE_MARGIN_S = 5.0
#: What others wait for is written at once, but not more often than this, and by all together not more often than that.
URGENT_GAP_S, URGENT_PER_S = 0.1, 600
#: A processor that was let in and is refused since then pauses at once, and ends after this time: a restart may bring a
#: new secret.
DENIED_S = 120.0
#: A processor that was never let in and lacks a right waits for this time: a new role takes effect minutes later.
ROLE_S = 600.0
#: After a failed call what is done seldom, or in several steps, is tried again this much later, then later and later.
#: A failed task starts again after twice this, doubled each time (`tasks.retry_at`).
RETRY_S = 0.25
#: A call that fails every time is in the end made this many times less often than usual.
BACK_OFF_MOST = 4
#: Beats, ours and the leader's, do not back off, or an outage of seconds would be a death. They come this much sooner,
#: while all that is read comes later; together that is less than usual.
BEAT_AGAIN = 0.75
#: A deletion that is refused is tried again after this time, then less and less often.
CLEAN_AGAIN_S, CLEAN_AGAIN_MOST_S = 1.0, 300.0
#: Each wrong suspicion of a leader doubles the patience with the next, at most this many times.
CHURN_MAX = 4
#: So many leader timeouts in office, and earlier wrong suspicions are forgotten.
CHURN_FORGOTTEN = 10
#: A job model that was too large is tried again after this time: it shrinks when tasks have been handed over.
FIT_AGAIN_S = 5.0
#: A task's failures are forgotten after it ran this long.
FORGIVE_AFTER_S = 600.0
#: An observer reads at most this many rows a second; there are four or, while many join, a few more.
ROWS_PER_S = 180
#: All followers together read the control blob at most this many times a second; Azure carries 500.
NEWS_PER_S = 250
#: While a run drains, each step waits for looks: they come so often, unless the group is so large that the bounds above
#: count.
DRAINING_LOOK_S = 0.2
#: For so long after a drain was requested, followers look as often as while a run drains: the leader takes it up soon.
DRAIN_ASKED_S = 10.0
#: Whoever asks for something waits for the leader to read it: this many times per scan, but not more often than this.
REQUESTS_PER_SCAN, REQUESTS_LEAST_S = 4, 0.15
#: All processors that wait for a release together read at most this many rows a second; Azure carries 2,000.
WAITS_PER_S = 250
#: A call that has failed this many times in a row is no accident: this resource is out of our reach.
OUT_OF_REACH = 5
#: Part of the death timeout after which a processor without an accepted heartbeat pauses itself.
SELF_STOP = 0.75


def draining_scan_s(members: int) -> float:
    """The leader's gap between two scans while a run drains, unless it scans more often anyway."""
    return max(DRAINING_LOOK_S, members / ROWS_PER_S)


def draining_look_s(processors: int) -> float:
    """A follower's gap between two reads of the leader row while a run drains, unless it reads more often anyway."""
    return max(DRAINING_LOOK_S, processors / NEWS_PER_S)


@dataclass(frozen=True, slots=True)
class Timing:
    """A profile, or what the job file made of it."""

    heartbeat_s: float = 2.0
    heartbeat_timeout_s: float = 8.0
    leader_timeout_s: float = 5.0
    scan_s: float = 1.0
    debounce_s: float = 2.0
    barrier_timeout_s: float = 30.0

    def scan_every_s(self, members: int) -> float:
        """How often all rows are read: in a very large group less often."""
        return max(self.scan_s, members / ROWS_PER_S)

    def look_every_s(self, members: int) -> float:
        """How often a follower looks at the leader row: in a very large group less often.

        News there sends everybody to the control blob; who looks at different times, comes at different times.
        """
        return max(self.heartbeat_s, members / NEWS_PER_S)

    def ask_every_s(self, members: int) -> float:
        """How often each asks the control blob while nobody leads."""
        return max(self.scan_s, members / NEWS_PER_S)

    def sight_every_s(self, members: int) -> float:
        """How often a follower reads the control blob although nothing is new, to see that it could."""
        return max(self.barrier_timeout_s, members / NEWS_PER_S)

    @property
    def requests_every_s(self) -> float:
        """How often the leader reads the requests."""
        return max(self.scan_s / REQUESTS_PER_SCAN, min(self.scan_s, REQUESTS_LEAST_S))

    def urgent_gap_s(self, members: int) -> float:
        """How soon after a write of its own row a member may write again what others wait for."""
        return min(max(URGENT_GAP_S, members / URGENT_PER_S), self.heartbeat_s)


@dataclass(frozen=True, slots=True)
class BackOff:
    """What a resource waits for after calls that failed: at first, and at most."""

    first_s: float
    most_s: float

    @property
    def longest_s(self) -> float:
        """The longest wait of all."""
        return self.most_s * 1.25

    def after(self, failures: int, random: float) -> float:
        """How long after a call was sent the next one is, when so many in a row have failed. `random` is below 1.

        Those who failed together would come back together; so each waits up to a quarter less or more.
        """
        return min(self.first_s * 2.0 ** min(failures - 1, 30), self.most_s) * (0.75 + random / 2)


PROFILES = {
    "eco": Timing(heartbeat_s=5.0, heartbeat_timeout_s=20.0, leader_timeout_s=15.0, scan_s=4.0),
    "default": Timing(),
    "fast": Timing(heartbeat_s=0.25, heartbeat_timeout_s=1.5, leader_timeout_s=0.8, scan_s=0.15, debounce_s=0.5),
}

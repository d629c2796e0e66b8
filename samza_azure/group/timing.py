"""The durations of the protocol, in seconds of the host's own clock. Only differences of its times are used."""

from dataclasses import dataclass

#: How long Azure grants the control blob's lease. A fence, not the failure detector.
LEASE_S = 60
#: The holder renews this long after it last asked.
RENEW_EVERY_S = 20.0
#: The holder counts from before it asked, and stops this long before the service can end the lease.
LEASE_MARGIN_S = 5.0
#: A write that others wait for is sent at once, but at most once per gap by one member, and at this rate by all.
URGENT_GAP_S, URGENT_PER_S = 0.1, 600
#: A processor that loses its access pauses at once, and ends after this time: a restart may bring a new secret.
DENIED_S = 120.0
#: A processor that never had access waits this long for a right: a new role takes effect minutes later.
ROLE_S = 600.0
#: A call that is rare, or one of several steps, is tried again this long after a failure, then later and later.
#: A failed task starts again after twice this, doubled each time (`tasks.retry_at`).
RETRY_S = 0.25
#: A call that keeps failing is made at most this many times less often than usual.
BACK_OFF_MOST = 4
#: Beats, ours and the leader's, do not back off; otherwise an outage of seconds would look like a death. While the
#: leader's fail, one comes after this part of the interval, the first ones sooner: two failures must not cost the
#: leadership. A lost answer to our own is settled after it, too. Reads back off, so there are fewer calls in all.
BEAT_AGAIN = 0.75
#: A leaving processor beats at least this often, since it soon stops waiting for a storage that accepts no heartbeat
#: (`tasks.SILENT_S`): with a slow profile, one lost heartbeat must not count as that.
LEAVING_BEAT_S = 2.0
#: A refused deletion is tried again after the first time, then later and later, up to the second.
CLEAN_AGAIN_S, CLEAN_AGAIN_MOST_S = 1.0, 300.0
#: Each wrong suspicion of a leader doubles the timeout for the next one, at most this many times.
CHURN_MAX = 4
#: A leader that has led for this many leader timeouts, doubled per wrong suspicion, resets `churn`.
CHURN_FORGOTTEN = 10
#: A job model that was too large is tried again after this time: it shrinks once tasks have been handed over.
FIT_AGAIN_S = 5.0
#: A task's failures are forgotten after it ran this long: longer than a task that is refused outside waits each time.
FORGIVE_AFTER_S = 2 * ROLE_S
#: A processor that restarts keeps its tasks, once in this time.
BACK_S = 600.0
#: An observer reads at most this many rows a second. There are four observers, or a few more while many join.
ROWS_PER_S = 180
#: All followers together read the control blob at most this many times a second; Azure carries 500.
NEWS_PER_S = 250
#: The interval between a follower's reads of the control blob without news, to check that it can. It is long, since
#: each of them costs as much as twelve reads of a row, and news are read at once.
SIGHT_S = 300.0
#: While a run drains, each step waits for looks. This is their interval, unless the bounds above make it longer in a
#: large group.
DRAINING_LOOK_S = 0.2
#: For this time after a processor has learned of a reason for news, it looks as often as in a drain, since the leader
#: announces them soon. It may not: if nobody can take the tasks of one that leaves, there may be none for long.
NEWS_EXPECTED_S = 10.0
#: All processors that wait for a release together read at most this many rows a second, and each row once more when
#: they begin to wait; Azure carries 2,000. For NEWS_EXPECTED_S each reads a row once in RELEASE_LOOK_S, since the task
#: stands still until then; after that at the scan rate.
WAITS_PER_S, RELEASE_LOOK_S = 250, 0.1
#: Each back-off reaches its maximum before this many doublings; a higher power may overflow.
DOUBLINGS_MAX = 30
#: After this many failures of a call in a row, we count its resource as out of reach.
OUT_OF_REACH = 5
#: The part of the heartbeat timeout after which a processor without an accepted heartbeat pauses itself.
SELF_STOP = 0.75
#: A ready container sends something every second. Its supervisor counts its silence in waits of this length.
LISTEN_S = 2.0
#: A container that says nothing for less than this does not hang: Java may be collecting garbage.
HANGS_LEAST_S = 5.0


def draining_scan_s(members: int) -> float:
    """The leader's gap between two scans while a run drains, unless it scans more often anyway."""
    return max(DRAINING_LOOK_S, members / ROWS_PER_S)


def draining_look_s(processors: int) -> float:
    """A follower's gap between two reads of the leader row while a run drains, unless it reads more often anyway."""
    return max(DRAINING_LOOK_S, processors / NEWS_PER_S)


@dataclass(frozen=True, slots=True)
class Timing:
    """A profile, with the changes of the job file."""

    heartbeat_s: float = 2.0
    heartbeat_timeout_s: float = 8.0
    leader_timeout_s: float = 5.0
    scan_s: float = 1.0
    debounce_s: float = 2.0
    barrier_timeout_s: float = 30.0

    @property
    def hangs_after_s(self) -> float:
        """The silence of a container, in seconds, after which its tasks are better run elsewhere."""
        return max(SELF_STOP * self.heartbeat_timeout_s, HANGS_LEAST_S)

    def scan_every_s(self, members: int) -> float:
        """The interval between reads of all rows; longer in a very large group."""
        return max(self.scan_s, members / ROWS_PER_S)

    def look_every_s(self, members: int) -> float:
        """The interval between a follower's reads of the leader row; longer in a very large group.

        A change there makes every follower read the control blob; spread reads of the row spread those reads.
        """
        return max(self.heartbeat_s, members / NEWS_PER_S)

    def ask_every_s(self, members: int) -> float:
        """The interval between a processor's reads of the control blob while nobody leads."""
        return max(self.scan_s, members / NEWS_PER_S)

    def urgent_gap_s(self, members: int) -> float:
        """The least time between a member's writes of its own row when others wait for them."""
        return min(max(URGENT_GAP_S, members / URGENT_PER_S), self.heartbeat_s)


@dataclass(frozen=True, slots=True)
class BackOff:
    """The wait after failed calls to a resource: the first, and the longest."""

    first_s: float
    most_s: float

    @property
    def longest_s(self) -> float:
        """The longest wait, including the random part."""
        return self.most_s * 1.25

    def after(self, failures: int, random: float) -> float:
        """The time from one call to the next after this many failures in a row. `random` is below 1.

        Clients that failed together would come back together; so each waits up to a quarter less or more.
        """
        return min(self.first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX), self.most_s) * (0.75 + random / 2)


PROFILES = {
    "eco": Timing(heartbeat_s=5.0, heartbeat_timeout_s=20.0, leader_timeout_s=15.0, scan_s=4.0),
    "default": Timing(),
    "fast": Timing(heartbeat_s=0.25, heartbeat_timeout_s=1.5, leader_timeout_s=0.8, scan_s=0.15, debounce_s=0.5),
}

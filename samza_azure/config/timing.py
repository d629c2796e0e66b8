"""How the durations of the coordination must relate to each other."""

from samza_azure.group.timing import Timing


def check_timing(timing: Timing) -> list[str]:
    """The relations that these durations violate, each a sentence with both numbers."""
    beat = ("heartbeat.interval", timing.heartbeat_s)
    scan = ("scan.interval", timing.scan_s)
    dead = ("heartbeat.timeout", timing.heartbeat_timeout_s)
    leader_dead = ("leader.timeout", timing.leader_timeout_s)
    barrier = ("barrier.timeout", timing.barrier_timeout_s)
    rules = [
        (dead, 3, beat, "so that a lost heartbeat and a late one do not count as a death"),
        (dead, 3, scan, "since a processor is considered dead only after three unchanged reads"),
        (leader_dead, 3, scan, "since a leader is suspected only after three unchanged reads"),
        (leader_dead, 2, beat, "so that one lost heartbeat does not depose a leader"),
        (barrier, 3, beat, "since a processor learns of a new version with its next heartbeat"),
    ]
    return [
        f"job.coordinator.{long[0]} is {long[1]:g} s and job.coordinator.{short[0]} is {short[1]:g} s. "
        f"The former should be at least {times} times the latter, {reason}."
        for long, times, short, reason in rules
        if long[1] < times * short[1]
    ]


def doubtful_timing(timing: Timing, slow_call_s: float) -> str | None:
    """A warning if the timeout is too short for calls of `slow_call_s` seconds, the slowest measured; else None."""
    needed = 3 * timing.heartbeat_s + 2 * slow_call_s
    if timing.heartbeat_timeout_s >= needed:
        return None
    return (
        f"job.coordinator.heartbeat.timeout is {timing.heartbeat_timeout_s:g} s, and three heartbeats of "
        f"{timing.heartbeat_s:g} s with two calls as slow as {slow_call_s:.2g} s need {needed:.3g} s. A processor "
        "that is alive may be considered dead. Raise the timeout, or choose a slower job.coordinator.profile."
    )

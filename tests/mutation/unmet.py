"""Branches of the pure packages that a simulation of six minutes need not meet, and why.

By module, function, how the text of the line begins, and way; all ways where none is given. What is met all the same
does no harm. What no test meets either stands in `tests/uncovered.py`.
"""

from tests.mutation.branches import Branch

_TYPES = "the types demand it: whoever calls has asked before"
_FENCE = "a check of what we write ourselves, which only a mistake of ours would meet"
_LARGE = "it takes a far larger group, log or job model than is simulated"
_STREAMS = "source streams and what is kept of them have no simulation; tests/logs and tests/storage play them"
_CONTAINER = "only the container with Spark does so; its sink and its tests play it"
_FOREIGN = "blobs or rows that somebody else damaged; tests/logs and tests/group show what is said"
_RARE = "several rare things at once; tests/logs and tests/group tell the story"
_ONCE = "no simulated producer has a key of `produce --once`; tests/logs and tests/commands do"
_SHOWN = (
    "what `status`, the metrics and the page show, of which no decision is made; tests/group and tests/commands ask"
)
_TEN_MINUTES = "a task would have to run well for ten minutes and then fail"

UNMET: dict[tuple[str, str, str, str], str] = {
    ("group/drain.py", "rows_to_drain", "", ""): _SHOWN,
    ("group/election.py", "_name_ourselves", "if not isinstance(seen", "true"): _TYPES,
    ("group/election.py", "leader_timeout", "churn = view.control.churn", "false"): _TYPES,
    ("group/ending.py", "_after_drain", "if view.settings.wait_for_upgrade", "true"): (
        "no simulated processor is told to wait for an upgrade; tests/group tells one"
    ),
    ("group/ending.py", "_as_it_came", "f\"{'Left the group. '", ""): "a clock has to jump while a task lets go late",
    ("group/ending.py", "_as_it_came", "if doubtful", "true"): "a clock has to jump while a task lets go late",
    ("group/ending.py", "_leave_row", "last_words", "false"): _TYPES,
    ("group/ending.py", "_other_pipeline", "differences", "true"): "simulated plans describe no stages in words",
    ("group/ending.py", "_other_pipeline", "if differences", "true"): "simulated plans describe no stages in words",
    ("group/ending.py", "_recounted", "return f\": {', '", "true"): "a simulated upgrade keeps the partitions",
    ("group/ending.py", "_refused", "if view.leadership is not None and view.leadership.in_vain", "true"): _LARGE,
    ("group/ending.py", "end", "lease_id = view.candidacy", "false"): _TYPES,
    ("group/ending.py", "end", "return [ReleaseLease(lease_id)]", "false"): _RARE,
    ("group/history.py", "with_events", "Event(view.wall_ms", "false"): _LARGE,
    ("group/learn.py", "_know_control", "mine = view.share.mine", "false"): _TYPES,
    ("group/learn.py", "_learn_members", "if not isinstance(read, ProcessorRow)", "true"): _TYPES,
    ("group/learn.py", "_running_well", "owner = control.tasks[task].owner", "false"): _TYPES,
    ("group/learn.py", "perform_locally", "case Tell()", "case"): _TYPES,
    ("group/learn.py", "heard_task", "local.failures = 1 if now", "true"): _TEN_MINUTES,
    ("group/membership.py", "join", "if view.life.rewritten >= RIVAL_WRITES", "true"): (
        "two processors with one id beat in turn, which nobody simulates; tests/group and tests/fleet do"
    ),
    ("group/membership.py", "look", "awaited = [min(awaited", ""): _LARGE,
    ("group/membership.py", "look", "if len(awaited) * gap", "true"): _LARGE,
    ("group/publish.py", "_ends", "return control.drain.ends", "false"): _TYPES,
    ("group/publish.py", "_runs_well", "well, owner = view.others.well", "false"): _TYPES,
    ("group/publish.py", "_wrong_owner", "if owner.generation != after.version", "true"): _FENCE,
    ("group/publish.py", "fitting", "if not newcomers", ""): _LARGE,
    ("group/publish.py", "fitting", "while _is_too_large", "true"): _LARGE,
    ("group/rows.py", "_progress", "behind={str(stream)", "false"): _FOREIGN,
    ("group/rows.py", "_last_batch", "{phase: _integer", "false"): _FOREIGN,
    ("group/shape.py", "make", "if type(value) is not dict", "true"): _FOREIGN,
    ("group/tasks.py", "_is_released_by", "if view.is_me(earlier)", "true"): (
        "a leader that may not start its own task gives it to itself again"
    ),
    ("group/view.py", "tries", "if isinstance(control, Control)", "false"): _TYPES,
    ("logs/forget.py", "kept", "return NeededBlobs(log.prefix", "false"): _RARE,
    ("logs/operations.py", "fetch", "if span is None", "true"): _FOREIGN,
    ("logs/partition.py", "canonical", "case dt.date()", "case"): _CONTAINER,
    ("logs/reading.py", "scan", "found.ahead = max(INDEX", "true"): _LARGE,
    ("logs/reading.py", "last_record", "if header is None or start", "true"): _FOREIGN,
    ("logs/reading.py", "last_record", "if not (yield", "true"): _RARE,
    ("logs/reading.py", "tail", "if following is None", "true"): _RARE,
    ("logs/record.py", "_header", "if text_at + text_length", "true"): _FOREIGN,
    ("logs/record.py", "encode", "if length > LENGTH_MAX", "true"): _LARGE,
    ("logs/restart_files.py", "size_of", "return content.length", "true"): _CONTAINER,
    ("logs/retention.py", "pieces", "if index is", ""): _STREAMS,
    ("logs/source_log.py", "_check", "first = yield from opening", "false"): _RARE,
    ("logs/source_log.py", "_check", "theirs = partitioning_of", "false"): _RARE,
    ("logs/source_log.py", "_open", "log.number = 0", "true"): _RARE,
    ("logs/source_log.py", "_record", "if log.once", "true"): _ONCE,
    ("logs/source_log.py", "_try", "if log.once", ""): _ONCE,
    ("logs/source_log.py", "add", "if self.group_id is not None", "true"): _FOREIGN,
    ("logs/source_log.py", "is_in_line", "if last is None", ""): _STREAMS,
    ("logs/source_log.py", "is_in_line", "if newest <= index", ""): _STREAMS,
    ("logs/source_log.py", "resume", "", ""): _ONCE,
    ("logs/task_log.py", "_check", "if opens and not is_epoch", "true"): _FOREIGN,
    ("logs/task_log.py", "_keep", "if len(self.files) > self._prune_at", "true"): _LARGE,
    ("logs/task_log.py", "_append_parcel", "if header is not None", "false"): _FOREIGN,
    ("logs/task_log.py", "_refuse_if_overtaken", "if any(index > log.end[0]", "true"): _RARE,
    ("logs/task_log.py", "send", "if span is None", "true"): _FOREIGN,
    ("logs/task_log.py", "send", "kind = StateLost", ""): _FOREIGN,
    ("logs/task_log.py", "set_aside", "if log.unsettled", "true"): _CONTAINER,
    ("logs/task_log.py", "set_aside", "return [replace(part", "false"): _CONTAINER,
}


def why(branch: Branch) -> str | None:
    """Why nothing need meet this one; None if it ought to be met."""
    for (path, function, text, way), reason in UNMET.items():
        here = branch.path == f"samza_azure/{path}" and branch.function == function
        if here and branch.text.startswith(text) and way in ("", branch.way):
            return reason
    return None


__all__ = ["UNMET", "why"]

"""Branches of the pure packages that a simulation of six minutes need not meet, and why.

By module, function, how the text of the line begins, and way; all ways where none is given. What is met all the same
does no harm. What no test meets either stands in `tests/uncovered.py`.
"""

from tests.mutation.branches import Branch

_TYPES = "the types demand it: whoever calls has asked before"
_LARGE = "it takes a far larger group, log or job model than is simulated"
_FOREIGN = "blobs or rows that somebody else damaged; tests/logs and tests/group show what is said"
_RARE = "several rare things at once; tests/logs and tests/group tell the story"
_ALONE = "groups of one have stories of their own in tests/sim/test_alone.py"

UNMET: dict[tuple[str, str, str, str], str] = {
    ("group/ending.py", "_rival", "", ""): _ALONE,
    ("group/ending.py", "verdict", "if (rival := _rival", "true"): _ALONE,
    ("group/ending.py", "_leave_row", "last_words", "false"): _TYPES,
    ("group/ending.py", "end", "lease_id = view.candidacy", "false"): _TYPES,
    ("group/learn.py", "_know_control", "mine = view.share.mine", "false"): _TYPES,
    ("group/learn.py", "_leader_beats", "", ""): _ALONE,
    ("group/learn.py", "_read_leader_row", "if view.settings.alone", "true"): _ALONE,
    ("group/learn.py", "_running_well", "owner = control.tasks[task].owner", "false"): _TYPES,
    ("group/learn.py", "perform_locally", "case Tell()", "case"): _TYPES,
    ("group/publish.py", "_comes_up", "if view.settings.alone", "true"): _ALONE,
    ("group/publish.py", "_ends", "return control.drain.ends", "false"): _TYPES,
    ("group/publish.py", "_runs_well", "well, owner = view.others.well", "false"): _TYPES,
    ("logs/reading.py", "scan", "found.ahead = max(INDEX", "true"): _LARGE,
    ("logs/reading.py", "last_record", "if header is None or start", "true"): _FOREIGN,
    ("logs/record.py", "_header", "if text_at + text_length", "true"): _FOREIGN,
    ("logs/record.py", "encode", "if length > LENGTH_MAX", "true"): _LARGE,
    ("logs/source_log.py", "_catch_up", "if (yield from is_in_line", "true"): _FOREIGN,
    ("logs/source_log.py", "resume", "if not left", "true"): _RARE,
    ("logs/task_log.py", "_keep", "if len(self.files) > self._prune_at", "true"): _LARGE,
}


def why(branch: Branch) -> str | None:
    """Why nothing need meet this one; None if it ought to be met."""
    for (path, function, text, way), reason in UNMET.items():
        here = branch.path == f"samza_azure/{path}" and branch.function == function
        if here and branch.text.startswith(text) and way in ("", branch.way):
            return reason
    return None


__all__ = ["UNMET", "why"]

"""On a cluster only executors compute that have the processor's Java.

Another major version computes, but not always the same: as text 2e23 is 1.9999999999999998E23 until Java 18, and 2.0E23
from 19 on. So a key that is made of it would have two groups.
Spark lets each executor fetch the files that its driver has named before it runs its first task. The container names
one that it serves itself (`spark/query/state_server.py`). Java says its version when it asks; to another one the file
is forbidden, under a name that has both versions. A task that lacks a file fails before anything of it is read, so each
task of such an executor fails, also of one that comes later; and Spark's error has the name.
Promised: whoever does not say its version gets nothing. Not promised: that processors have the same Java.
"""

import re
from http import HTTPStatus

_NAME = r"/executors-need-java-(\d+)(?:-and-this-is-java-(\d+))?"
#: What Java says of itself when it asks, behind what an option may put in front: java.net.HttpURLConnection.
_AGENT = re.compile(r"(?:^| )Java/(\d+)")
#: In an error of Spark's: what the processor has, and what the executor.
FORBIDDEN = re.compile(rf"HTTP response code: {HTTPStatus.FORBIDDEN.value} for URL: https?://[^/\s]+{_NAME}")


def path_for(major: int) -> str:
    """The path of the file that only this version of Java gets."""
    return f"/executors-need-java-{major}"


def answer(path: str, agent: str) -> tuple[HTTPStatus, str] | None:
    """What somebody gets who asks for this path: the status, and to which path it is sent. None: it is another file.

    `agent` is what it says of itself.
    """
    asked = re.fullmatch(_NAME, path)
    if asked is None:
        return None
    needed, other = asked.groups()
    found = _AGENT.search(agent)
    if other is not None or found is None:
        return HTTPStatus.FORBIDDEN, ""
    if found[1] == needed:
        return HTTPStatus.OK, ""
    return HTTPStatus.FOUND, f"{path}-and-this-is-java-{found[1]}"


def advice(forbidden: re.Match[str]) -> str:
    """What is wrong, why that matters, and what to do."""
    needed, other = forbidden.groups()
    what = f"Java {other}" if other else "no Java that says its version"
    return (
        f"An executor has {what}, and the processor has Java {needed}. Their rows could differ: as text 2e23 is "
        "1.9999999999999998E23 until Java 18, and 2.0E23 from 19 on. So it computes nothing. "
        f"Start each worker with Java {needed} (JAVA_HOME), or run pods from the processor's image; to change to "
        "another Java, drain, and change that of all processors and workers."
    )

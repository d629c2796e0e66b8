"""The report of a failed task: a short error message and the traceback, without secrets."""

import re
import sys
import traceback
from collections.abc import Callable

from samza_azure.errors import PermitExpired, SamzaAzureError, StorageUnavailable
from samza_azure.messages import TaskError
from samza_azure.tasks import same_java
from samza_azure.user_code import CALLED_WITH, is_ours

#: Begins Spark's description of the query, in the message of the error that ended it.
QUERY_DESCRIBED = "\n=== Streaming Query ==="
#: How Spark introduces the traceback of a Python worker.
FROM_A_WORKER = "An exception was thrown from the Python worker:\n"
#: A line of a traceback that names a place.
_PLACE = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
#: Begins the lines after it: the line of code, and the underlining of a part of it.
_CODE = "    "
#: What to do instead of what an error of Spark's advises, by the class of the error.
_INSTEAD = {
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        'State that expires by the clock is refused: use timeMode "EventTime" and a timer that clears the state.'
    ),
}
#: What executors of a cluster say whose Java or Python is not the processor's, and what to do.
_LAST_FAILURE = "most recent failure: "
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_NEEDS = f"Python {_PYTHON} with pyarrow and what the functions import"
_ON_PATH = f"Put {_NEEDS} first on the PATH of each worker, as samza-azure worker does, or of the image of pods."
_OF_EXECUTORS: dict[re.Pattern[str], Callable[[re.Match[str]], str]] = {
    same_java.FORBIDDEN: same_java.advice,
    re.compile(r'Cannot run program "python3".*error=2,'): lambda _: (  # not for want of memory or of a right
        f"An executor runs Python functions with the python3 on its PATH, and there is none. {_ON_PATH}"
    ),
    re.compile(r"PYTHON_VERSION_MISMATCH"): lambda _: (
        f"The python3 on the PATH of an executor is another one than the processor's. {_ON_PATH}"
    ),
}
#: The name of StorageUnavailable in a Python worker's traceback.
IN_A_TRACEBACK = f"{StorageUnavailable.__module__}.{StorageUnavailable.__qualname__}: "
MESSAGE_LIMIT, TRACE_LIMIT = 4096, 12_288


def is_waiting_for_storage(error: BaseException | None) -> bool:
    """Whether a query ended because the storage did not answer or the permit expired: it is restarted, not failed.

    Spark reports an error of a source in a Python worker as text with the worker's traceback. The traceback has the
    full name of our class; the bare name could also be in a user's error.
    """
    return isinstance(error, PermitExpired | StorageUnavailable) or (
        not isinstance(error, SamzaAzureError) and error is not None and IN_A_TRACEBACK in str(error)
    )


def reported(error: BaseException, clean: Callable[[str], str]) -> TaskError:
    """The error as the task's report has it; `clean` removes secrets."""
    trace = "".join(traceback.format_exception(error))
    return TaskError(clean(in_short(error))[:MESSAGE_LIMIT], clean(trace)[-TRACE_LIMIT:])


def drop_frames(error: BaseException | None) -> None:
    """Drop the local variables of the functions that an error has passed through. Others may keep the error."""
    seen = set[int]()  # causes may form a circle, as after `raise error from error`
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def in_short(error: BaseException) -> str:
    """The error without Spark's description of the query and without a worker's frames: the traceback has both."""
    if isinstance(error, SamzaAzureError):
        return str(error) or type(error).__name__
    text = str(error).partition(QUERY_DESCRIBED)[0]
    _, introduction, traced = text.partition(FROM_A_WORKER)
    said = (introduction and _raised(traced)) or f"{type(error).__name__}: {text}"
    said = _of_executors(text) or said
    return "\n".join([said, *(instead for name, instead in _INSTEAD.items() if name in text)])


def _of_executors(text: str) -> str:
    """What is wrong with the Java or Python of an executor, what to do, where; without a stack. Empty: nothing is."""
    for pattern, advice in _OF_EXECUTORS.items():
        if found := pattern.search(text):
            lines = [line.strip().rpartition(_LAST_FAILURE)[1:] for line in text.splitlines()]
            lost = [line for introduction, line in lines if introduction]
            said = [line for _, line in lines if pattern.search(line)]
            return "\n".join(dict.fromkeys([advice(found), *lost, *said[:1]]))
    return ""


def _raised(traced: str) -> str:
    """From a worker's traceback: the error, the innermost place in the user's code, and the values of the call.

    Empty if the traceback has no user code; then only the frames help.
    """
    lines = traced.partition("\n\n\tat ")[0].rstrip().splitlines()  # Java's frames follow
    places = [(number, found) for number, line in enumerate(lines) if (found := _PLACE.fullmatch(line))]
    ours = [(number, found) for number, found in places if is_ours(found["file"])]
    if not ours:
        return ""
    end = places[-1][0] + 1
    while end < len(lines) and lines[end].startswith(_CODE):
        end += 1
    number, place = ours[-1]
    code = (
        f": {lines[number + 1].strip()}"
        if lines[number + 1 : number + 2] and lines[number + 1].startswith(_CODE)
        else ""
    )
    rest, notes = lines[end:], [line for line in lines[end:] if line.startswith(CALLED_WITH)]
    where = f"in {place['function']}, {place['file']}, line {place['line']}{code}"
    return "\n".join([*(line for line in rest if line not in notes), where, *notes])

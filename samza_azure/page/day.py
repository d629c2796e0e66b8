"""What the page shows of the record of the last day. Pure.

Of an error the page shows less than the account has: of a message the short first line, of a trace the lines of code. A
message may quote a row, and so may each line of a trace that is neither.
"""

import re
from dataclasses import asdict
from typing import Any

from samza_azure.host.last_day import DAY_MS, EVERY_S, LastDay
from samza_azure.page.verdict import first_line

__all__ = ["code_lines", "day"]

#: A curve has a gap where points are farther apart, in seconds.
GAP_S = 3 * EVERY_S
#: A frame of Python or of Java, and the name of an exception without its message.
_FRAME = re.compile(r'\s+(?:File ".*", line \d+|at [\w.$<>/@]+\(.*\)$)')
_NAME = re.compile(r"(?:Caused by: )?([A-Za-z_][\w.$]*(?:Error|Exception|Exit|Interrupt|Warning))(?::.*)?$")
_BEGIN = "Traceback (most recent call last):"


def day(record: LastDay) -> dict[str, Any]:
    """The curves of the last day, and its failures with the latest first."""
    points: list[Any] = []
    for point in record.points:
        if points and point[0] - points[-1][0] > GAP_S * 1000:
            points.append((points[-1][0] + 1, None, None, None))
        points.append(point)
    failures = [
        {**asdict(each), "message": first_line(each.message), "trace": code_lines(each.trace)}
        for each in sorted(record.failures, key=lambda each: -each.last_ms)
    ]
    return {"seconds": DAY_MS // 1000, "points": points, "failures": failures}


def code_lines(trace: str) -> str:
    """The frames of a trace, the code in them, and the names of the exceptions."""
    kept, is_code = list[str](), False
    for line in trace.splitlines():
        if _FRAME.match(line):
            kept.append(line)
            is_code = line.lstrip().startswith("File ")
            continue
        if is_code and line.startswith("    "):
            kept.append(line)
        elif name := _NAME.match(line):
            kept.append(name[1])
        elif line.strip() == _BEGIN:
            kept.append(line)
        is_code = False
    return "\n".join(kept)

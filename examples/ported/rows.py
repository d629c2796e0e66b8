"""The input of the five jobs: made from a fixed seed, out of order by less than any job's watermark delay.

`write` puts it where the plain jobs read it, and adds one closing row per stream, far ahead of all others. A plain
query fires a window only when a later row has moved the watermark past it, so without that row its last windows would
never be written; a drain fires them by itself. What comes of the closing rows is left out of the comparison.
"""

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Row = dict[str, Any]

ROWS = 1200
FILES = 3
START = datetime(2024, 5, 1, tzinfo=UTC)
#: No row arrives later than this after its event time; the jobs wait for ten minutes or more.
DISORDER_S = 300
#: The key of a closing row, as text and as a number.
CLOSING, CLOSING_ID = "closing", -1

#: What one row of a stream looks like: its key as text and as a number, its event time, a die.
_Make = Callable[[str, int, str, random.Random], Row]
_STREAMS: dict[str, dict[str, _Make]] = {
    "windowed_counts": {
        "words": lambda key, number, time, die: {"timestamp": time, "word": key},
    },
    "sessions": {
        "events": lambda key, number, time, die: {"timestamp": time, "userId": key},
    },
    "joined_streams": {
        "impressions": lambda key, number, time, die: {"impressionAdId": number, "impressionTime": time},
        "clicks": lambda key, number, time, die: {"clickAdId": number, "clickTime": time},
    },
    "deduplication": {
        "events": lambda key, number, time, die: {"guid": key, "eventTime": time, "value": die.randrange(100)},
    },
    "stateful_function": {
        "readings": lambda key, number, time, die: {"device": key, "time": time, "celsius": round(die.gauss(20, 5), 1)},
    },
}
JOBS = tuple(_STREAMS)
#: How many different keys there are; a guid is one of its own.
_KEYS = {"windowed_counts": 12, "sessions": 40, "joined_streams": 400, "deduplication": ROWS, "stateful_function": 15}
#: From one row to the next.
_STEP_S = {"joined_streams": 60}


def arrivals(job: str) -> dict[str, list[Row]]:
    """The rows of each stream that a job reads, in the order in which they arrive."""
    die = random.Random(8)
    streams = {}
    for stream, make in _STREAMS[job].items():
        arriving = []
        for second in range(0, ROWS * _STEP_S.get(job, 20), _STEP_S.get(job, 20)):
            number = len(arriving) if job == "deduplication" else die.randrange(_KEYS[job])
            row = make(f"key-{number}", number, _text(START + timedelta(seconds=second)), die)
            arriving.append((second + die.uniform(0, DISORDER_S), row))
        if job == "deduplication":  # the sender was not sure, and sent a third of them again
            again = die.sample(arriving, ROWS // 3)
            arriving += [(arrived + die.uniform(0, DISORDER_S), row) for arrived, row in again]
        streams[stream] = [row for _, row in sorted(arriving, key=lambda each: each[0])]
    return streams


def write(job: str, folder: Path) -> dict[str, Path]:
    """JSON lines: several files in `folder`/STREAM/ for the plain job; one per stream for `produce`, returned."""
    produced = {}
    for stream, rows in arrivals(job).items():
        produced[stream] = _lines(folder / f"{stream}.jsonl", rows)
        size = -(-len(rows) // FILES)
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
        closing = _STREAMS[job][stream](CLOSING, CLOSING_ID, _text(START + timedelta(days=60)), random.Random(8))
        (folder / stream).mkdir()
        for number, piece in enumerate([*pieces, [closing]]):
            path = _lines(folder / stream / f"{number}.jsonl", piece)
            os.utime(path, (number, number))  # Spark reads the oldest file first
    return produced


def is_closing(row: Row) -> bool:
    """Whether it is about a closing row, and no other."""
    return bool({CLOSING, CLOSING_ID}.intersection(value for value in row.values() if isinstance(value, str | int)))


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

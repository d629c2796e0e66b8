"""Plays docs/first-hour.md, once word for word from a wheel, then in short in folders of every length.

    .venv/bin/python tests/prove/first_hour.py --from 10 --to 120

A wheel lacks what only a checkout has. A folder's name becomes part of the paths of sockets, checkpoints and archives,
each of which has a limit somewhere else. In each folder `dev` runs one processor, rows are put in, and the rows that
come out are compared.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Timer

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.end_to_end.test_first_hour import FILES, as_run, blocks, name_of, pasted
from tests.end_to_end.test_first_hour import play as play_page

ROOT = Path(__file__).parents[2]
#: What comes out without a drain: an inner join waits for nothing.
EXPECTED = ['{"id": "a", "amount": "10.00", "method": "card"}', '{"id": "c", "amount": "5.25", "method": "cash"}']
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=10)
    parser.add_argument("--to", dest="last", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-wheel", action="store_true", help="only the folders")
    asked = parser.parse_args()
    if not asked.no_wheel:
        begun = time.monotonic()
        play_from_wheel()
        print(f"from a wheel, word for word: as the page says, {time.monotonic() - begun:.0f} s", flush=True)
    failed = []
    lengths = range(asked.first, asked.last + 1)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for length, (trouble, seconds) in zip(lengths, pool.map(play, lengths), strict=True):
            print(f"{length:4} bytes  {seconds:5.1f} s  {trouble or 'as the page says'}", flush=True)
            failed += [length] if trouble else []
    print(f"{len(lengths)} folders, {len(failed)} failed{f': {failed}' if failed else ''}")
    return 1 if failed else 0


def play_from_wheel() -> None:
    """Install a wheel as the page's first block does, into an environment of its own, and play the page with it."""
    with tempfile.TemporaryDirectory() as base:
        venv.create(f"{base}/venv", with_pip=True)
        python = f"{base}/venv/bin/python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", f"{base}/dist", str(ROOT)], check=True)
        [wheel] = Path(base, "dist").glob("*.whl")
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "install", *constraints, f"{wheel}[spark,local]"], check=True)
        folder = Path(base, "shop")
        folder.mkdir()
        play_page(folder, python)


def play(length: int) -> tuple[str, float]:
    """The trouble with the job in a folder of this length, if any, and how long it took."""
    folder, begun = Path(f"/tmp/f{length:03}".ljust(length, "x")), time.monotonic()
    folder.mkdir()
    for kind, text, before in blocks():
        if kind in FILES:
            (folder / name_of(before)).write_text(text.replace("partitions = 2", "partitions = 1"))
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    dev = subprocess.Popen(
        as_run("samza-azure dev job.toml --processors 1"), cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        environment["AZURE_STORAGE_CONNECTION_STRING"] = pasted(dev, [])
        for line in ("produce job.toml orders orders.csv", "produce job.toml payments payments.jsonl"):
            done = subprocess.run(
                as_run(f"samza-azure {line}"), cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                return f"{line}: {done.stderr}", time.monotonic() - begun
        trouble = followed(folder, environment)
        dev.send_signal(signal.SIGINT)
        code = dev.wait(60)
        return trouble or ("" if code == 0 else f"dev ended with {code}"), time.monotonic() - begun
    finally:
        dev.kill()
        shutil.rmtree(folder, ignore_errors=True)


def followed(folder: Path, environment: dict[str, str]) -> str:
    """The rows that come out, if they are not those that are expected."""
    follow = subprocess.Popen(
        as_run("samza-azure follow job.toml matched --from earliest"), cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert follow.stdout is not None
    alarm = Timer(PATIENCE_S, follow.kill)
    alarm.start()
    try:
        rows = sorted(line.strip() for line in islice(follow.stdout, len(EXPECTED)))
    finally:
        alarm.cancel()
        follow.kill()
    return "" if rows == EXPECTED else f"out came {rows}"


if __name__ == "__main__":
    sys.exit(main())

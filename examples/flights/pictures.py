"""The pictures of the status page in the README: the leader is killed, and later the run is drained.

python examples/flights/pictures.py   # needs the groups demo and browser of pyproject.toml, and a Chromium; two minutes

Three processors run the example while the flights arrive; the pictures go to docs/pictures.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flights import write
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "pictures"
SIZE = {"width": 1200, "height": 1180}  # down to the processors
RATE, CURVES_S, PATIENCE_S = 2_500, 45.0, 240.0


def main() -> None:
    """Start, produce, kill, take a picture, drain, take another one."""
    work = Path(tempfile.mkdtemp(prefix="samza-azure-pictures-"))
    for name in ("pipeline.py", "job.toml"):
        shutil.copy(HERE / name, work / name)
    write(work / "flights.parquet")
    with Azurite().start() as emulator, sync_playwright() as play:
        os.environ[VARIABLE] = emulator.connection_string
        fleet = Fleet(work / "job.toml", work / "logs")
        page = play.chromium.launch(executable_path=shutil.which("chromium")).new_page(viewport=SIZE)
        others = []
        try:
            for number in range(1, 4):
                fleet.start(f"p{number}")
            others.append(subprocess.Popen(command(work, "ui", "--port", "8421"), cwd=work))
            opened(page)
            until(page, lambda state, text: state == "running" and "3 processors" in text)
            produce = command(work, "produce", "flights", "flights.parquet", "--key", "dest", "--rate", str(RATE))
            others.append(subprocess.Popen(produce, cwd=work, stderr=subprocess.DEVNULL))
            page.wait_for_timeout(CURVES_S * 1000)
            leader = page.inner_text("#processors tr:has-text('leads') th")
            fleet.send(leader, signal.SIGKILL)
            until(page, lambda state, text: leader in text)
            shoot(page, "leader-killed.png")
            until(page, lambda state, text: state == "running")
            page.wait_for_timeout(10_000)
            others.append(subprocess.Popen(command(work, "drain"), cwd=work))
            until(page, lambda state, text: state == "draining")
            shoot(page, "drain.png")
            fleet.processes.pop(leader)
            print(fleet.exit_codes(PATIENCE_S))
        finally:
            for each in others:
                each.terminate()
            fleet.stop()
    shutil.rmtree(work)


def shoot(page: Page, name: str) -> None:
    """A picture with the few colours that the page has, a third of the size."""
    page.screenshot(path=PICTURES / name)
    Image.open(PICTURES / name).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
        PICTURES / name, optimize=True
    )


def opened(page: Page) -> None:
    """The page, once its server answers."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            page.goto("http://127.0.0.1:8421/")
        except Exception:
            if time.monotonic() > deadline:
                raise
            page.wait_for_timeout(500)
        else:
            return


def until(page: Page, wanted: Callable[[str, str], bool]) -> None:
    """Wait for a verdict."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(state := page.inner_text("#state").lower(), text := page.inner_text("#text")):
        if time.monotonic() > deadline:
            raise SystemExit(f"Not within {PATIENCE_S:g} s. The page says: {state}: {text}")
        page.wait_for_timeout(50)
    print(text)


def command(work: Path, name: str, *rest: str) -> list[str]:
    """A command of samza-azure on this job."""
    return [sys.executable, "-m", "samza_azure", name, str(work / "job.toml"), *rest]


if __name__ == "__main__":
    main()

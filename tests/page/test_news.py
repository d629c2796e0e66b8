"""How a page in a browser hears of news, with the browser's clock, connection and event stream played by Node."""

import json
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from samza_azure.commands.azurite.emulator import find_node

#: A browser of which the time is set, and which records each question and each opened stream.
BROWSER = """
let now = 1_000_000, ticks = [], asked = [], streams = [];
Date.now = () => now;
globalThis.setInterval = (tick, every) => ticks.push({ tick, every, next: now + every });
globalThis.fetch = async () => {
  asked.push(now);
  now += delay;
  if (status === 0) throw new TypeError("refused");
  return { ok: status === 200, status, json: async () => ({}) };
};
globalThis.EventSource = class {
  static CLOSED = 2;
  constructor() { this.readyState = 1; streams.push(this); }
  close() { this.readyState = 2; }
};
let delay = 0, status = 200, losses = [];
async function pass(milliseconds) {
  const until = now + milliseconds;
  for (;;) {
    const first = ticks.toSorted((one, other) => one.next - other.next)[0];
    if (first.next > until) break;
    now = Math.max(now, first.next);
    first.next += first.every;
    first.tick();
    for (let turn = 0; turn < 10; turn += 1) await null;
  }
  now = until;
}
const { listen } = await import("data:text/javascript," + encodeURIComponent(%s));
listen(() => {}, (since, status) => losses.push([now - since, status]));
%s
"""


def play(story: str) -> Any:
    source = files("samza_azure.page").joinpath("static", "news.js").read_text()
    program = BROWSER % (json.dumps(source), f"{story}\nconsole.log(JSON.stringify(found));")
    command = [find_node().program, "--input-type=module", "-e", program]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("delay", [0, 300])
def test_without_a_stream_it_asks_every_five_seconds(delay: int) -> None:
    found = play(f"delay = {delay}; streams[0].readyState = 0; await pass(60_000); const found = asked.length;")
    assert found >= 11


def test_a_stream_that_is_open_and_says_nothing_is_not_relied_on() -> None:
    found = play("""
      streams[0].onmessage({ data: "{}" });
      await pass(60_000);
      const found = asked.length;""")
    assert found >= 10


def test_the_page_does_not_poll_while_events_arrive() -> None:
    found = play("""
      for (let each = 0; each < 30; each += 1) { streams[0].onmessage({ data: "{}" }); await pass(2_000); }
      const found = [asked.length, streams.length];""")
    assert found == [0, 1]


def test_a_stream_that_was_closed_is_opened_anew() -> None:
    """A browser gives up for good when a proxy answers for a server that restarts."""
    found = play("""
      streams[0].readyState = 2;
      await pass(6_000);
      streams[1].onmessage({ data: "{}" });
      const before = asked.length;
      await pass(3_000);
      const found = [streams.length, asked.length - before];""")
    assert found == [2, 0]


@pytest.mark.parametrize("status", [0, 403])
def test_the_page_reports_a_dead_server_after_ten_seconds(status: int) -> None:
    found = play(f"""
      streams[0].onmessage({{ data: "{{}}" }});
      status = {status};
      await pass(9_000);
      const before = losses.length;
      await pass(7_000);
      const found = [before, losses[0]];""")
    assert found == [0, [10_000, status]]


def test_the_page_reports_a_server_that_never_answered() -> None:
    found = play("""
      status = 0;
      await pass(16_000);
      const found = losses[0];""")
    assert found == [10_000, 0]


def test_a_server_that_answers_is_not_lost() -> None:
    found = play("""
      await pass(8_000);
      status = 0;
      await pass(6_000);
      status = 200;
      await pass(60_000);
      const found = losses;""")
    assert found == []

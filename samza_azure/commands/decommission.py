"""`samza-azure decommission`: one processor will go, so it hands its tasks over while there is time."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from samza_azure.commands.connect import POLL_S, Looks, connect, sure_look, with_rows
from samza_azure.commands.job import Job, load, load_seen
from samza_azure.commands.requests import Asked, ask_notice
from samza_azure.commands.terminal import if_interrupted, say, tell
from samza_azure.commands.wait_limit import WaitLimit
from samza_azure.config import Config
from samza_azure.config.values import PositiveDuration
from samza_azure.errors import ConfigError, StorageUnavailable, TimedOut
from samza_azure.group.notice import LEFT_LIMIT, Availability, Going, going_again
from samza_azure.group.rows import ProcessorRow, RequestKind
from samza_azure.host.asking import asker
from samza_azure.host.decommission import ROUTE, app_of
from samza_azure.host.endpoint import PORTS
from samza_azure.machine.clock import wall_ms

#: How long a processor of this machine may take to answer, in seconds.
ANSWERS_S = 5.0
#: How long a leader may take to obey without --wait: it reads requests once a second.
OBEYS_S = 10.0


def command(
    job: Job,
    processor: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The processor; without one, those of this machine.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Until when: 30s, 5min from now, or a time such as 2026-12-01T18:00:00Z.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all its tasks are handed over.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait at most, then exit with 4.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Withdraw it: the processor gets tasks again.")] = False,
) -> None:
    """Tell one processor that it will go: it hands its tasks over while there is time, and waits without tasks.

    With an ID the leader is asked, through the account. Without one each processor of this machine is told over its
    `processor.port`, as a preStop hook does. With --by a batch that cannot end in time is given up and repeated
    elsewhere. End the processor when it is decommissioned, or withdraw this with --cancel.

    Example: samza-azure decommission job.toml worker-3 --by 5min --wait
    """
    if cancel and (by is not None or wait):
        raise ConfigError("--cancel goes without --by and --wait.")
    if timeout is not None and not wait:
        raise ConfigError("--timeout bounds a wait. Add --wait, or leave it out.")
    until_ms = 0 if by is None else _until_ms(by, wall_ms())
    limit = WaitLimit(timeout)
    if processor is None:
        _here(load(job), until_ms, limit, wait=wait, cancel=cancel)
    else:
        _elsewhere(load_seen(job), processor, until_ms, limit, wait=wait, cancel=cancel)


def _until_ms(text: str, now_ms: int) -> int:
    """The time that --by names, in milliseconds since 1970. Raise `ConfigError`."""
    try:
        return now_ms + round(TypeAdapter(PositiveDuration).validate_python(text) * 1000)
    except ValidationError:
        pass
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ConfigError(f"--by {text} has no time zone. Add one: {text}Z is UTC.")
        found = round(at.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"--by {text} is neither a duration, such as 30s, nor a time, such as {_EXAMPLE}.") from None
    if found <= now_ms:
        raise ConfigError(f"--by {text} is over. Name a time to come, or leave it out.")
    return found


_EXAMPLE = "2026-12-01T18:00:00Z"


# Through the account.


def _elsewhere(config: Config, processor: str, until_ms: int, limit: WaitLimit, *, wait: bool, cancel: bool) -> None:
    account = connect(config, create=False)
    _, rows, gone = sure_look(config, account)
    row = _named(processor, rows, gone)
    kind = RequestKind.RECOMMISSION if cancel else RequestKind.DECOMMISSION
    asked = with_rows(account, lambda blob, table: ask_notice(table, kind, row.incarnation, until_ms))
    what = f"withdrawal of the notice to {processor}" if cancel else f"decommissioning of {processor}"
    say(f"The {what} is requested.")
    obeys = WaitLimit(OBEYS_S if limit.seconds is None else min(limit.seconds, OBEYS_S))
    with if_interrupted("The request stays. `status` shows what becomes of it."), Looks(account) as looks:
        _await_answer(looks, asked, obeys)
        if not wait:
            tell(f"{processor} gets tasks again." if cancel else f"{processor} hands its tasks over.")
            return
        said = ""
        while True:
            try:
                _, rows = looks.look()
            except StorageUnavailable:
                rows = []
            now = next((each for each in rows if each.processor == processor), None)
            if now is not None and (over := _over(row, now)) is not None:
                tell(over)
                return
            if now is not None and now.going is not None and (text := _in_words(processor, now.going)) != said:
                say(text)
                said = text
            if limit.is_over:
                raise TimedOut(f"{said or processor + ' has not begun.'} It goes on without this command.")
            time.sleep(POLL_S)


def _named(processor: str, rows: Sequence[ProcessorRow], gone: set[str]) -> ProcessorRow:
    """The row of a live processor. Raise `ConfigError` if there is none of this name."""
    alive = sorted(row.processor for row in rows if row.alive and row.processor not in gone)
    found = next((row for row in rows if row.processor == processor), None)
    if found is not None and processor in alive:
        return found
    there = f"Those that run: {', '.join(alive)}." if alive else "No processor runs."
    is_known = "It has ended, or has sent no heartbeat lately" if found is not None else "There is no processor"
    raise ConfigError(f"{processor} cannot be decommissioned: {is_known} of this name. {there}")


def _await_answer(looks: Looks, asked: Asked, limit: WaitLimit) -> None:
    """Wait until the leader has obeyed. Raise `ConfigError` if it refuses."""
    while True:
        answer = ""
        try:
            answer = looks.answered(asked)
        except StorageUnavailable as error:
            say(str(error))
        if answer.startswith("refused"):
            raise ConfigError(f"That was not done: {answer}.")
        if answer:
            return
        if limit.is_over:
            raise TimedOut(
                f"No leader has obeyed within {limit.seconds:g} s. The request stays for a day. Is there a leader "
                "(samza-azure status), and of a release that knows this request?"
            )
        time.sleep(POLL_S)


def _over(asked: ProcessorRow, now: ProcessorRow) -> str | None:
    """The last word on a processor that has handed over, or cannot any more; None while it goes on."""
    who = asked.processor
    if now.incarnation != asked.incarnation:
        raise ConfigError(f"{who} was restarted or marked dead meanwhile, and is back with tasks. Ask again.")
    if not now.alive:
        return f"{who} has ended. {now.ending.partition(' ')[2]}".rstrip()
    if now.going is not None and now.going.state is Availability.DECOMMISSIONED:
        return _in_words(who, now.going)
    return None


def _in_words(processor: str, going: Going) -> str:
    return f"{processor} {going.state}: {going.in_words(LEFT_LIMIT)}."


# On this machine.


def _here(config: Config, until_ms: int, limit: WaitLimit, *, wait: bool, cancel: bool) -> None:
    ports = list(_ports(config))
    if not ports:
        raise ConfigError(
            "No processor of this job answers on this machine. Name one by its ID, or set processor.port in the job "
            "file, to the same number for this command and for `run`."
        )
    body = json.dumps({"why": f"asked for by {asker()}", **({"by_ms": until_ms} if until_ms else {})})
    for port in ports:
        found = _call(port, "DELETE" if cancel else "POST", None if cancel else body)
        say(f"{found['processor']} is told." if found is not None else f"The processor at port {port} has ended.")
    said: dict[int, str] = {}
    while wait and ports:
        for port in list(ports):
            found = _call(port, "GET")
            text = _said(found) if found is not None else "It has ended."
            if found is None or found["state"] == Availability.DECOMMISSIONED:
                ports.remove(port)
                tell(text)
            elif said.get(port) != text:
                say(text)
                said[port] = text
        if ports and limit.is_over:
            raise TimedOut(f"{' '.join(said.values())} It goes on without this command.")
        time.sleep(POLL_S if ports else 0)


def _said(found: dict[str, Any]) -> str:
    going = going_again(found)
    return _in_words(found["processor"], going) if going is not None else f"{found['processor']} {found['state']}."


def _ports(config: Config) -> Iterator[int]:
    """The ports of this job's processors on this machine."""
    first = config.processor.port
    for port in range(first, min(first + PORTS, 65536)) if first else ():
        found = _call(port, "GET")
        if found is not None and app_of(config).items() <= found.items():
            yield port


def _call(port: int, method: str, body: str | None = None) -> dict[str, Any] | None:
    """Call the route of a processor; None if there is none."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    data = body.encode() if body is not None else None
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{ROUTE}", data, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=ANSWERS_S) as answer:
            found = json.loads(answer.read(1 << 20))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None

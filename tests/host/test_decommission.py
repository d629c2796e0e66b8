"""The route by which a processor is told on its own machine that it will go."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from samza_azure.coordinator import JobCoordinator
from samza_azure.group.notice import Availability, Going
from samza_azure.host.decommission import ROUTE, add_decommission
from samza_azure.machine.clock import boot_time, wall_ms

OF = {"container": "box", "table": "rows"}


class Told(JobCoordinator):
    """Notes what it is told. It has handed over one task of two."""

    is_leader, job_model = False, None

    def __init__(self) -> None:
        self.notices: dict[str, tuple[str, float | None]] = {}

    def set_listener(self, listener: object) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def report(self, *reports: object) -> None: ...
    def container_lost(self, reason: str) -> None: ...

    def decommission(self, why: str, *, by: float | None = None, source: str = "port") -> None:
        self.notices.setdefault(source, (why, by))

    def recommission(self, source: str = "port") -> None:
        self.notices.pop(source, None)

    @property
    def going(self) -> Going | None:
        if not self.notices:
            return None
        return Going(Availability.DECOMMISSIONING, "scale-in", 5, 2, 1, {"a-1": "its batch has not ended yet"})


def asked(ask: Callable[[TestClient[web.Request, web.Application]], Awaitable[None]], told: Told) -> None:
    async def serve() -> None:
        app = web.Application()
        add_decommission(app, told, OF)
        async with TestClient(TestServer(app)) as client:
            await ask(client)

    asyncio.run(serve())


def test_a_request_on_its_port_decommissions_a_processor_and_another_brings_it_back() -> None:
    told, by_ms = Told(), wall_ms() + 30_000

    async def ask(client: TestClient[web.Request, web.Application]) -> None:
        assert (await (await client.get(ROUTE)).json()) == {"processor": "", **OF, "state": "SCHEDULABLE"}
        answer = await client.post(ROUTE, json={"why": "scale-in", "by_ms": by_ms})
        shown = await answer.json()
        assert (answer.status, shown["state"], shown["tasks"], shown["handed_over"]) == (202, "DECOMMISSIONING", 2, 1)
        ((why, by),) = told.notices.values()
        assert why == "scale-in" and by is not None and 0 < by - boot_time() <= 31
        await client.post(ROUTE, json={})
        assert told.notices == {"port": (why, by)}
        await client.delete(ROUTE)
        assert told.notices == {}

    asked(ask, told)


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"by": 5}', '{"by_ms": "soon"}', '{"by_ms": true}', '{"by_ms": 0}', '{"why": 7}', ""]
)
def test_a_body_that_says_something_else_is_refused_with_an_example(body: str) -> None:
    told = Told()

    async def ask(client: TestClient[web.Request, web.Application]) -> None:
        answer = await client.post(ROUTE, data=body, headers={"Content-Type": "application/json"})
        assert answer.status == 400 and "by_ms" in await answer.text()

    asked(ask, told)
    assert told.notices == {}


def test_a_page_of_another_site_cannot_tell_it() -> None:
    """A browser sends a form, or text, without asking first; JSON only after a question, which nobody answers."""
    told = Told()

    async def ask(client: TestClient[web.Request, web.Application]) -> None:
        assert (await client.post(ROUTE, data={"why": "x"})).status == 415
        assert (await client.post(ROUTE, data="{}", headers={"Content-Type": "text/plain"})).status == 415
        assert (await client.post(ROUTE, json={}, headers={"Host": "evil.example"})).status == 403
        assert (await client.options(ROUTE)).status == 405

    asked(ask, told)
    assert told.notices == {}

"""A headless Chromium, driven through its DevTools protocol: what a page does when it is opened."""

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Page:
    """A tab: its events since it was opened, and what it answers."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        """Take over an attached tab."""
        self._socket, self._session, self._asked = socket, session, 1000
        self.events: list[dict[str, Any]] = []
        self.opened: list[str] = []

    async def ask(self, method: str, **params: object) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._asked += 1
        asked = self._asked
        message = {"id": asked, "sessionId": self._session, "method": method, "params": params}
        await self._socket.send_json(message)
        while True:
            answer = await self._next()
            if answer.get("id") == asked:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.opened.append(url)
        loaded = len(self.params_of("Page.loadEventFired"))
        await self.ask("Page.navigate", url=url)
        while len(self.params_of("Page.loadEventFired")) == loaded:
            await self._next()

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def screen(
        self, width: int, *, dark: bool = False, scale: float = 1, height: int = 900
    ) -> None:
        """Set the size and the colours of the screen."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        """Write what the screen shows."""
        shot = await self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def params_of(self, method: str) -> list[dict[str, Any]]:
        """The parameters of each event of a kind so far."""
        return [event["params"] for event in self.events if event["method"] == method]

    async def _next(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((await self._socket.receive(timeout=600)).data)
        if "method" in answer and answer.get("sessionId") == self._session:
            self.events.append(answer)
        return answer


class Complaints(NamedTuple):
    """What a browser says of a page that it opened."""

    requests: list[str]
    console: list[str]
    problems: list[str]


def complaints(page: Page) -> Complaints:
    """The requests of a page besides those for itself, and all errors that the browser told."""
    requests = [told["request"]["url"] for told in page.params_of("Network.requestWillBeSent")]
    console = [str(told) for told in page.params_of("Runtime.exceptionThrown")]
    console += [str(told) for told in page.params_of("Runtime.consoleAPICalled")]
    problems = [
        told["entry"]["text"]
        for told in page.params_of("Log.entryAdded")
        if told["entry"]["level"] in ("error", "warning")
    ]
    own = ("data:", *page.opened)
    return Complaints([url for url in requests if not url.startswith(own)], console, problems)


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """An empty tab of a new browser with a profile of its own in `folder`."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/version") as answer:
                url = (await answer.json())["webSocketDebuggerUrl"]
            async with http.ws_connect(url, max_msg_size=0) as socket:
                yield await _tab(socket)
    finally:
        # The whole group: a browser is many processes.
        os.killpg(process.pid, 9)
        await process.wait()


async def _port(file: Path) -> int:
    for _ in range(600):
        if file.exists() and (lines := file.read_text().split()):
            return int(lines[0])
        await asyncio.sleep(0.05)
    raise TimeoutError("the browser did not start")


async def _tab(socket: aiohttp.ClientWebSocketResponse) -> Page:
    async def ask(number: int, method: str, **params: object) -> dict[str, Any]:
        await socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = json.loads((await socket.receive(timeout=600)).data)
            if answer.get("id") == number:
                result: dict[str, Any] = answer["result"]
                return result

    target = (await ask(1, "Target.createTarget", url="about:blank"))["targetId"]
    attached = await ask(2, "Target.attachToTarget", targetId=target, flatten=True)
    page = Page(socket, attached["sessionId"])
    for domain in ("Page", "Runtime", "Network", "Log"):
        await page.ask(f"{domain}.enable")
    return page

"""`twinpool top`: a running server's load, live in a terminal.

watch ─► a status each interval ─► draw; the server goes away ─► say so, wait, watch anew; q, Ctrl-C ─► end
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live

from twinpool.backoff import backoff_s
from twinpool.cli.charts import ASCII, BLOCKS
from twinpool.cli.exits import Exit
from twinpool.cli.top_frame import Screen, View, frame
from twinpool.cli.top_history import History
from twinpool.client.errors import ServerUnreachable
from twinpool.client.operations import DEFAULT_TARGET, AsyncOperationsClient, OperationsClient
from twinpool.client.status import Status
from twinpool.errors import DeadlineExceeded, RequestCancelled, ServerDraining, TooManyCalls

_COMES_BACK = (ServerUnreachable, ServerDraining, TooManyCalls, RequestCancelled, DeadlineExceeded)
BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
REDRAW_S = 1.0
"""Also without news: how old they are is shown."""
SILENCE_S = 5.0
"""Without news for so long, beside the interval, a connection that is open has to be called broken."""
_WIDTH_WITHOUT_TERMINAL = 120


def top(*, interval: float = 1.0, target: str = DEFAULT_TARGET) -> int:
    """Show workers, latencies and throughput live, over the last three minutes. q or Ctrl-C ends it.

    Without a terminal: one picture, after two looks an interval apart.

    Parameters
    ----------
    interval
        Seconds between two looks, at least 0.1.
    target
        The server's operations port, as HOST:PORT.
    """
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        return _print_one(console, interval, target)
    return asyncio.run(_Top(console, interval, target).run())


def _print_one(console: Console, interval_s: float, target: str) -> int:
    history, status = History(interval_s), None
    with OperationsClient(target) as client, client.watch(interval_s) as states:
        for status, _ in zip(states, range(2), strict=False):
            history.add(status)
    width = console.width if console.is_terminal else _WIDTH_WITHOUT_TERMINAL
    for line in frame(View(target, status, history), _screen(console, width, None)):
        console.print(line, soft_wrap=True)
    return Exit.DONE


class _Top:
    """The live picture."""

    def __init__(self, console: Console, interval_s: float, target: str) -> None:
        self._console = console
        self._interval_s = interval_s
        self._target = target
        self._history = History(interval_s)
        self._status: Status | None = None
        self._seen_at = time.monotonic()
        self._trouble = f"asking {target}"
        self._quit = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> int:
        """Until the user has seen enough. Raises what will not get better by itself."""
        watching = asyncio.create_task(self._watch())
        watching.add_done_callback(lambda _: self._changed.set())
        with (
            _keys(self._pressed),
            _signals(self._pressed),
            Live(console=self._console, screen=True, auto_refresh=False) as live,
        ):
            while not self._quit.is_set() and not watching.done():
                live.update(self._picture(), refresh=True)
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(REDRAW_S):
                        await self._changed.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if not watching.cancelled():
            watching.result()
        return Exit.DONE

    async def _watch(self) -> None:
        num_failures = 0
        while True:
            began_at = self._seen_at
            try:
                await self._follow()
                words = "the server ended the watch"
            except _COMES_BACK as error:
                words = str(error)
            except TimeoutError:
                words = "the connection is open, and nothing comes"
            num_failures = 0 if self._seen_at != began_at else num_failures
            wait_s = backoff_s(BACKOFF_S, num_failures)
            num_failures += 1
            self._trouble = f"trying again in {wait_s:g} s: {' '.join(words.split())}"
            self._changed.set()
            await asyncio.sleep(wait_s)

    async def _follow(self) -> None:
        """Take statuses for as long as they come. Raises TimeoutError once they come no more."""
        async with AsyncOperationsClient(self._target) as client:
            states = client.watch(self._interval_s)
            while True:
                try:
                    # Not wait_for: until Python 3.12, it may swallow a cancellation.
                    async with asyncio.timeout(self._interval_s + SILENCE_S):
                        status = await anext(states)
                except StopAsyncIteration:
                    return
                self._history.add(status)
                self._status, self._seen_at, self._trouble = status, time.monotonic(), ""
                self._changed.set()

    def _picture(self) -> Group:
        trouble = self._trouble
        if trouble and self._status is not None:
            trouble = f"no news for {time.monotonic() - self._seen_at:.0f} s, {trouble}"
        view = View(self._target, self._status, self._history, trouble)
        size = self._console.size
        return Group(*frame(view, _screen(self._console, size.width, size.height)))

    def _pressed(self, key: str) -> None:
        if key in ("q", "Q"):
            self._quit.set()
            self._changed.set()


def _screen(console: Console, width: int, height: int | None) -> Screen:
    return Screen(width, height, ASCII if console.options.ascii_only else BLOCKS)


@contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Pass each key on as it is pressed, unseen; afterwards the terminal is as it was."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: _pass_on(os.read(descriptor, 64), pressed))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pass_on(typed: bytes, pressed: Callable[[str], None]) -> None:
    for key in typed.decode(errors="replace"):
        pressed(key)


@contextmanager
def _signals(pressed: Callable[[str], None]) -> Iterator[None]:
    """Take a polite end as a q: the terminal must be left as it was."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, pressed, "q")
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

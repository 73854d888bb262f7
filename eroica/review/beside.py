"""Work beside the screen, in threads that never hold up the end of the review."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


async def in_thread(call: Callable[[], Made], name: str) -> Made:
    """Return what ``call`` returns, run in a daemon thread; whoever cancels does not wait for it.

    Textual's own thread workers run in the loop's executor, which is joined at the end: a review
    would stay until a model had answered.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def finish(result: Made | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Made | None = None
        error: Exception | None = None
        try:
            result = call()
        except Exception as raised:  # whoever awaits it is told
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the review was left
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


def join(name: str, seconds: float) -> None:
    """Wait for the threads of that name to end."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(seconds)

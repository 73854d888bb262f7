"""Loading the MCP server quickly: an assistant waits for it each time it starts."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server import MCPServer


def load(roots: list[Path], *, rehearsal: str | None = None) -> "MCPServer":
    """Return the server; ModuleNotFoundError where the SDK is not installed.

    The SDK makes some 100,000 objects that stay for good; looking through them for garbage while
    they come takes a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from eroica.assistants.server import build

        return build(roots, rehearsal=rehearsal)
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()

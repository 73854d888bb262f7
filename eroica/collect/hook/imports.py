"""Run a function right after the job itself imports a module; the hook imports no torch."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

from . import guard

_waiting: dict[str, list[Any]] = {}


def when_imported(name: str, action: Any) -> None:
    """Call ``action(module)`` now if the module is there whole, else when it is imported."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _run(action, module)
        return
    _waiting.setdefault(name, []).append(action)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _run(action: Any, module: Any) -> None:
    with guard.quietly("watching " + getattr(module, "__name__", "a module")):
        action(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find the module and stands between its loader and the caller."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the actions that wait for it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # Give the module its own loader back: inspect and importlib.resources ask for it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in _waiting.pop(module.__name__, []):
            _run(action, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

"""Put on PYTHONPATH by ``eroica run``: brings the hook into each rank, then steps aside.

It loads the hook by its place on disk, so that eroica need not be installed in the job's Python,
and runs the sitecustomize that would have been found without it.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name, path, folder=None):
    # type: (str, str, object) -> object
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        submodule_search_locations=[folder] if folder else None,  # type: ignore[list-item]
    )
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _run_the_other():
    # type: () -> None
    """Run the sitecustomize that this one hides, as Python would have."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _attach():
    # type: () -> None
    if os.environ.get("RANK") is None or os.environ.get("EROICA") == "0":
        return
    folder = os.path.join(os.path.dirname(_HERE), "hook")
    try:
        _load("eroica_hook", os.path.join(folder, "__init__.py"), folder).attach()  # type: ignore[attr-defined]
    except Exception as error:
        sys.stderr.write("eroica: not watching this process ({!r})\n".format(error))


_attach()
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
_run_the_other()

"""Every test: no network but loopback, no key, no model, no proxy of whoever runs it."""

import os
import re
import sys

import hypothesis
import pytest
from pytest_socket import socket_allow_hosts

_FOREIGN = re.compile(r"(?i)^(openai|langsmith|langchain|anthropic|eroica)_|_proxy$|^api_key$")


# No deadline: the first example may pay for compilation, and machines are shared.
hypothesis.settings.register_profile("eroica", deadline=None)
hypothesis.settings.load_profile("eroica")


def pytest_configure(config):
    for name in [name for name in os.environ if _FOREIGN.search(name)]:
        if name != "EROICA_SHARED":
            del os.environ[name]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item):
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    for name in ("make_rank", "tests.make_rank"):
        if name in sys.modules:
            sys.modules[name].end_started()


@pytest.fixture
def golden(request):
    """Compare a text with a file in tests/data; ``--update-golden`` rewrites it."""

    def check(name, text):
        path = request.config.rootpath / "tests" / "data" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{name} is missing: run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def saved_incident(request, tmp_path):
    """Return a copy of an incident of tests/data/incidents, to be written to at will."""
    import shutil

    from eroica.incident import IncidentFolder

    def copy(name):
        source = request.config.rootpath / "tests" / "data" / "incidents" / name
        return IncidentFolder(shutil.copytree(source, tmp_path / "incidents" / name))

    return copy

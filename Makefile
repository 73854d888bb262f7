# The same few words people and CI use. Everything lives in .venv; .venv/.ready is its stamp.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test unit check format cases docs clean

demo: $(VENV)/.ready ## a real job with a real fault: watched, diagnosed, explained, patched
	$(BIN)/eroica demo --yes

# A real job may end badly for reasons of its own (torch aborts a rank at exit now and then; a busy
# machine): it is started once more before that counts.
test: unit ## all tests: those without a job on all cores, then real jobs one after the other
	$(BIN)/python -m pytest -m job --reruns 1

unit: $(VENV)/.ready ## the tests that start no training job
	$(BIN)/python -m pytest -m "not job" -n auto

cases: $(VENV)/.ready ## the labelled programs of tests/cases, run live and scored into docs/benchmarks.md; alone on the machine
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/cases.py --write

docs: $(VENV)/.ready ## the generated pages
	$(BIN)/python docs/generate.py

check: $(VENV)/.ready ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.ready: pyproject.toml constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch -c constraints-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,mcp,torch]' -c constraints-dev.txt
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

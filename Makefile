# make demo   draw images, caption and question them, check the answers
# make test   the tests
# make check  formatting, lint, types
# make docs   the site of docs/ in site/; a link that leads nowhere fails it

PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test check docs format clean

demo: .venv/.demo
	.venv/bin/python -m zellige.flows.demo

# Three processes on two cores: tests often wait. A file stays whole, for what it starts serves all of its tests.
test: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/pytest --numprocesses 3 --dist loadfile

check: .venv/.dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/pytest tests/test_layering.py

docs: .venv/.dev
	PYTHONPATH=docs .venv/bin/zensical build --strict --clean

format: .venv/.dev
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; make PYTHON=python3.12 names another" if sys.version_info < (3, 11) else 0)'
	@echo "installing into .venv, which takes some minutes"
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml setup.py constraints.txt | .venv/bin/python
	$(PIP) '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml setup.py constraints.txt | .venv/bin/python
	$(PIP) '.[demo,serve,test,check,docs]'
	@touch $@

clean:
	rm -rf .venv .cache site build *.egg-info demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

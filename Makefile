# make run    start the server on port 8000       make lint   ruff and mypy
# make test   run the tests                       make bench  run the benchmarks
# make image  build the container image           make venv   only prepare .venv
# make fleet  start several servers and show what routing does (docs/fleet.md); FLEET="--pods 8" for its flags
# make clients  prepare .venv-clients, with which make test also checks litellm, instructor and langchain
#
# Needs Python 3.11 or newer; everything else goes into .venv, once.

VENV := .venv
CLIENTS := .venv-clients
BIN := $(VENV)/bin
IMAGE := understudy

# The first interpreter that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: run test lint bench fleet image venv clients clean

run: $(VENV)/.run
	$(BIN)/gunicorn wsgi:app

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy --strict app config benchmarks wsgi.py

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

fleet: $(VENV)/.fleet
	$(BIN)/python -m app fleet $(FLEET)

image:
	docker build --tag $(IMAGE) .

venv: $(VENV)/.dev

clients: $(CLIENTS)/.installed

clean:
	rm -rf $(VENV) $(CLIENTS) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@ $(VENV)/.run

$(VENV)/.fleet: requirements-fleet.txt requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-fleet.txt
	@touch $@ $(VENV)/.run

$(CLIENTS)/.installed: tests/conformance/requirements-clients.txt | $(BIN)/python
	@$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

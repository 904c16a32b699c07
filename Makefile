# Everything starts from a clone and a Python 3.11 or newer: each target sets up what it needs, once.

PYTHON ?= python3
TORCH ?= 2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Images often set this, with which each of hundreds of processes would compile its imports again.
export PYTHONDONTWRITEBYTECODE :=
# What is imported is compiled then; pip would compile more than twice as much, one file after the other.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint $(VENV)/constraints.txt
# Processes of one thread each: tests are small, and threads that wait for each other cost more. Three of them keep
# two cores busy, as many a test waits for processes of its own. Each begins with its part of the files, so that
# what the tests of a file share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist worksteal
DEMO := runs/demo
DEMO_CHANGES ?=
STUDY ?= a-context b-reparam c-optimizers c-continued d-memory e-matrix f-ngpt g-scale
STUDY_OUT ?= sweeps/study
CAMPAIGN ?=
# In the order of docs/results/scale/plan.md.
SCALE ?= q1 q1-context q1-context-start q1-start q2-gpt q2-amos q2-ngpt q3 q3-deep q2-horizon q2-wsd q3-weight-norm q4 q6
# The folder of a tiny copy of the study (python -m benchmarks.scale copy FOLDER) to train and report instead.
SCALE_COPY ?=
SCALE_COMMAND = $(BIN)/python -m benchmarks.scale $(if $(SCALE_COPY),--study $(SCALE_COPY))
EMPTY :=
PROMPT := def $(EMPTY)

# Tests that click in a page need a browser; a machine without one leaves them out, and says so.
ifeq ($(and $(wildcard /usr/bin/chromedriver),$(wildcard /usr/bin/chromium)),)
BROWSERLESS := -m 'not browser'
BROWSER_NOTICE := echo 'Tests that open a page in a browser are left out; they need: apt-get install chromium chromium-driver'
else
BROWSER_NOTICE := :
endif

# The Python that measures on a GPU, and wheels for it where it has torch and no network (make gpu-wheels).
GPU_PYTHON ?= $(BIN)/python
GPU_VERSION ?= 3.12
GPU_PLATFORM ?= manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
GPU ?=
WHEELS ?=
# Of the wheels only these, where the other machine has the rest: ONLY='pydantic pydantic-core ...'.
ONLY ?=

.PHONY: help demo study study-report scale-study scale-report scale-hours campaign gpu gpu-wheels test check wheel-test docs format clean

help:
	@echo "make demo    train and sample an nGPT, compare GPT, nGPT, WeSaR and Amos: a verdict in minutes"
	@echo "             shorter: make demo DEMO_CHANGES='train.steps=100'"
	@echo "make test    run the tests"
	@echo "make campaign  kills, losses of power, damaged files, configurations, shortages (hours; goes on where it was)"
	@echo "make gpu     tests and measurements on a GPU, in half an hour, into docs/results; goes on where it was"
	@echo "             with a torch that is there: make gpu GPU_PYTHON=python3, without a network also"
	@echo "             WHEELS=wheels, which make gpu-wheels has filled elsewhere"
	@echo "make check   lint, types, tests, wheel-test, docs"
	@echo "make wheel-test  build the wheel, install it elsewhere, type every command there"
	@echo "make docs    build the documentation's site, site/index.html"
	@echo "make study   run the sweeps of configs/sweeps/study (many hours on a CPU; goes on where it was), then:"
	@echo "make study-report  their verdicts, tables and curves from the run folders, in sweeps/study/report"
	@echo "make scale-study  run the sweeps of configs/sweeps/scale (days on two cores; goes on where it was), then:"
	@echo "             a tiny copy: python -m benchmarks.scale copy FOLDER; make scale-study SCALE_COPY=FOLDER"
	@echo "make scale-report  their verdicts, tables and pictures from the committed lines, docs/results/scale.md"
	@echo "make scale-hours  core-hours that each of its questions has taken, and still takes at the measured speed"
	@echo "make format  format the code"
	@echo "make clean   delete runs of the demo, caches, the site and the environment"

# torch comes first and pinned, so that no other requirement can bring another build of it. The pip that comes with
# Python 3.11 compares every file of a registry with a list of tags, which takes longer than the installation.
$(VENV)/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	$(INSTALL) pip
	$(INSTALL) torch
	$(INSTALL) --editable '.[dev]'
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(INSTALL) --editable '.[dev,docs]'
	touch $@

wheel-test: $(VENV)/ready
	$(BIN)/python tests/wheel_commands.py

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	! grep -rE '(src|href)="https?://[^"]*\.(js|css|woff2?)"' site --include=*.html

# The text, then the comparison, which ends with the verdict. Finished runs of the comparison are kept.
demo: $(VENV)/ready
	rm -rf $(DEMO)/demo-text
	$(BIN)/zoo train demo-text train.runs_dir=$(DEMO) $(DEMO_CHANGES)
	@$(BIN)/zoo generate $(DEMO)/demo-text --prompt '$(PROMPT)' --max-new-tokens 100
	$(BIN)/zoo sweep configs/sweeps/demo.yaml --workers 2 --out $(DEMO) --report $(DEMO)/report $(DEMO_CHANGES)

study: $(VENV)/ready
	@for sweep in $(STUDY); do \
		$(BIN)/zoo sweep configs/sweeps/study/$$sweep.yaml --out $(STUDY_OUT); \
		case $$? in 0|1) ;; *) exit 1 ;; esac; \
	done
	@$(MAKE) --no-print-directory study-report

# Of the sweeps that have begun.
study-report: $(VENV)/ready
	@for sweep in $(STUDY); do \
		test ! -e $(STUDY_OUT)/$$sweep/sweep.json || \
		$(BIN)/zoo report $(STUDY_OUT)/$$sweep --out $(STUDY_OUT)/report/$$sweep || exit; \
	done

# Run folders may be gone: a sweep goes on from its lines in docs/results/scale, which get one more with every run.
scale-study: $(VENV)/ready
	@$(SCALE_COMMAND) train $(SCALE)
	@$(MAKE) --no-print-directory scale-report

scale-hours: $(VENV)/ready
	@$(SCALE_COMMAND) hours $(SCALE)

scale-report: $(VENV)/ready
	@$(SCALE_COMMAND) report

test: $(VENV)/ready
	@$(BROWSER_NOTICE)
	$(PYTEST) $(BROWSERLESS)

campaign: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.campaigns $(CAMPAIGN)

gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/ready)
ifneq ($(WHEELS),)
	$(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $(WHEELS)/site $(WHEELS)/*.whl
endif
	PYTHONPATH=$(CURDIR)$(if $(WHEELS),:$(WHEELS)/site) $(GPU_PYTHON) -m benchmarks.gpu $(GPU)

gpu-wheels: $(VENV)/ready
	$(BIN)/python -m benchmarks.gpu.requirements $(ONLY) > wheels.txt
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
		--python-version $(GPU_VERSION) $(GPU_PLATFORM:%=--platform %) \
		--dest $(or $(WHEELS),wheels) --requirement wheels.txt
	rm wheels.txt

check: $(VENV)/ready docs wheel-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BROWSER_NOTICE)
	$(PYTEST) $(BROWSERLESS)

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(DEMO) $(VENV) .mypy_cache .pytest_cache .ruff_cache site

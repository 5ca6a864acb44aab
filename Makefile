# Every target works in a clean clone: the virtual environment is made on first use.
.DEFAULT_GOAL := help
.PHONY: help install fix lint check test test-all smoke reproduce reproduce-all evidence grids quality peers bench-peers freeze clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.posbench-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# the versions that the published results were made with
CONSTRAINTS := .ci/constraints.txt

# what `make reproduce` trains and measures
EXPERIMENT ?= demo
NAME ?= $(EXPERIMENT)
SEEDS ?= 1
MINUTES ?= 60
# the runs that take longest to measure first
SCHEMES ?= rope,rope_matched,none,sinusoidal,learned,t5,alibi
RESCALE ?= none,pi,ntk,ntk_by_parts,dynamic_ntk,yarn,yarn_paper
FACTORS ?= 8,auto
TRAIN ?=
EVAL ?=
RUNS ?= runs
OUT ?= $(RUNS)/reference/$(NAME)
JOBS ?= 2
PEERS ?=
# pictures and clips
ON_GRIDS ?= alibi_axial,rope_axial,mrope,rope,rope_mixed,sinusoidal,none
PHOTOS = EXPERIMENT=photos2d NAME=photos2d OUT=$(RUNS)/reference/photos2d RESCALE=none,pi,yarn \
  FACTORS=auto EVAL='eval.shapes=[16x16,24x24,32x32,48x48,16x32,16x48,32x16,48x16]'
VIDEO = EXPERIMENT=video3d NAME=video3d OUT=$(RUNS)/reference/video3d RESCALE=none,pi,yarn \
  FACTORS=auto EVAL=eval.docs=12

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(READY)  ## Make the virtual environment and install posbench with its tools

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c $(CONSTRAINTS) pip setuptools wheel
	@# first and alone, so that the pinned build is taken before anything asks for another
	$(PIP) install -q -c $(CONSTRAINTS) torch
	$(PIP) install -q -c $(CONSTRAINTS) -e '.[dev,launch,vision,video]'
	@touch $@

fix: $(READY)  ## Format and mend what can be mended
	$(BIN)/ruff format posbench conf tests
	$(BIN)/ruff check --fix posbench conf tests

lint: $(READY)  ## Format, lint and types, nothing is changed
	$(BIN)/ruff format --check posbench conf tests
	$(BIN)/ruff check posbench conf tests
	$(BIN)/mypy

check: lint test  ## Lint, types and the fast tests

test: $(READY)  ## The fast tests
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: $(READY)  ## All tests
	$(BIN)/python -m pytest -n 2

smoke: $(READY)  ## Two schemes through the whole chain, in under 2 minutes
	$(MAKE) --no-print-directory reproduce EXPERIMENT=smoke SCHEMES=alibi,rope \
	  RESCALE=none,yarn FACTORS=8 EVAL='eval.docs=4 eval.blocks=1' OUT=$(RUNS)/smoke/report

# A run that diverges (exit code 1) does not keep the others out of the report. While some still
# train, those that are finished are measured beside them, with less right to the cores; the sweep at
# the end finds their rows. An interrupt ends both.
reproduce: $(READY)  ## Train, sweep and report one experiment (EXPERIMENT=demo SEEDS=1)
	@set -e; code=0; trap 'kill 0' INT; \
	sweep="$(BIN)/posbench eval-lengths $(NAME) runs_root=$(RUNS) -j $(JOBS) \
	  rescale=[$(RESCALE)] rescale.factor=[$(FACTORS)] $(EVAL)"; \
	(trap exit TERM; while sleep 60 & wait $$!; do nice -n 5 $$sweep > /dev/null 2>&1 || :; done) & early=$$!; \
	$(BIN)/posbench train experiment=$(EXPERIMENT) name=$(NAME) posenc=$(SCHEMES) $(TRAIN) \
	  seed='range(0,$(SEEDS))' runs_root=$(RUNS) -m -j $(JOBS) || code=$$?; \
	kill $$early; wait $$early || :; \
	[ $$code -le 1 ] || exit $$code; \
	$$sweep > /dev/null || code=$$?; \
	[ $$code -le 1 ] || exit $$code; \
	$(BIN)/posbench report $(NAME) --runs-root $(RUNS) --out $(OUT); \
	exit $$code

reproduce-all: $(READY)  ## Text, photographs and clips: every published table, in 45 minutes
	@code=0; each="$(MAKE) --no-print-directory reproduce"; \
	$$each || code=$$?; \
	$$each SCHEMES=$(ON_GRIDS) $(PHOTOS) || code=$$?; \
	$$each SCHEMES=$(ON_GRIDS) $(VIDEO) || code=$$?; \
	exit $$code

# what is committed counts as done, a training that is interrupted goes on from its checkpoint
evidence: SEEDS = 3
evidence: $(READY)  ## A slice of the plan of experiments, then tables and claims (SEEDS=3 MINUTES=60)
	$(BIN)/posbench claims --run --minutes $(MINUTES) --seeds $(SEEDS) --runs-root $(RUNS) \
	  --cells $(RUNS)/reference/evidence/cells --out $(RUNS)/reference/evidence

grids: $(READY)  ## Photographs, moving digits and clips in full size, 3 seeds: hours
	@code=0; for data in photos2d:photos video3d:moving_digits video3d:clips; do \
	  $(MAKE) --no-print-directory reproduce SEEDS=3 NAME=$${data#*:} \
	  SCHEMES=$(ON_GRIDS),sinusoidal_axial,learned_axial,t5_axial,mrope_interleaved \
	  EXPERIMENT=$${data%:*} TRAIN="data=$${data#*:} train.steps=4000" \
	  RESCALE=none,pi,ntk,yarn FACTORS=2,auto OUT=$(RUNS)/reference/$${data#*:} || code=$$?; \
	done; exit $$code

# AdamW's runs are plain, the others compiled; two at a time, so that all have the same conditions
quality: $(READY)  ## Which optimizer and rate reach the loss of 1,000 plain AdamW steps soonest
	@set -e; train="$(BIN)/posbench train experiment=quality runs_root=$(RUNS) -m -j 2"; \
	$$train train.compile=false train.lr=0.0024,0.0047 || [ $$? -eq 1 ]; \
	$$train train.compile=true optimizer=muon train.steps=700 train.lr=0.0024,0.0047 || \
	  [ $$? -eq 1 ]; \
	$(BIN)/posbench report quality --training --runs-root $(RUNS) --out $(RUNS)/reference/quality

# needs no installed posbench: every peer gets it in an environment of its own, below .peers/
peers:  ## Other libraries' tables and schemes beside posbench's (PEERS=name ... for some)
	PYTHONPATH=tests $(PYTHON) -m peers $(PEERS)

bench-peers:  ## Speed beside other libraries (ROUNDS=5 NANOGPT=checkout; QUICK=1 is a trial)
	PYTHONPATH=tests $(PYTHON) -m peers.speed $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(if $(QUICK),--quick)

freeze: $(READY)  ## Rebuild the frozen targets and tokenizers of the built-in corpora
	$(BIN)/python -m posbench.data.freeze

clean:  ## Remove the virtual environment and caches; runs stay
	rm -rf $(VENV) .peers build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

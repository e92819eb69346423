# EscrowMQ. Every target works on a fresh clone: the first one makes .venv and installs into it.
# Everything that is installed is pinned in constraints.txt.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: fence-trials instruments docs test-long spark-trials controls help demo demo-pictures test lint simulate campaign bench stored live bench-spark walk load chaos fuzz spark-nodes

# The tests start hundreds of processes: what one of them has compiled, the others need not.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed

# The pins were taken with 3.11, so that comes first. A shim that names no real interpreter fails the probe.
PYTHON ?= $(shell for p in python3.11 python3.12 python3 /usr/bin/python3.11 /usr/bin/python3.12; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
	&& echo "$$p" && break; done)

SEEDS ?= 200
JOBS ?= 2
# The fast tests wait for syncs of the disk for a third of their time: one more of them keeps two cores busy.
FAST_JOBS ?= 3
SEED ?= 1
EXAMPLES ?= 20000
TRIALS ?= 50
FOR ?= 40m
FILE ?= artifacts/campaign.json
# The longest files begin first (tests/conftest.py); without this option those with the most tests would.
IN_ORDER = --dist loadfile --no-loadscope-reorder

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: $(STAMP) ## orders through escrow while things are being killed; Spark checks the result (4 minutes)
	mkdir -p artifacts
	$(BIN)/escrowmq demo --picture artifacts/demo.svg

demo-pictures: $(STAMP) ## the README's two pictures of make demo, from a run of it: series and terminal (4 minutes)
	$(BIN)/escrowmq demo --picture docs/images/demo.svg --screen docs/images/demo-screen.svg

# Collecting compiles the tests once for all workers, on the core that the linters leave free. What it cannot
# collect, the tests tell.
test: $(STAMP) ## everything: lint, types, layers, then the fast tests, then real Ray and Spark (less than 25 minutes on two cores)
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null & collecting=$$!; \
	$(MAKE) --no-print-directory lint; result=$$?; wait $$collecting || true; exit $$result
	$(BIN)/python -m pytest -m "not ray and not spark and not slow and not long" -n $(FAST_JOBS) $(IN_ORDER) --durations=30
	$(BIN)/python -m pytest -m "(ray or spark or slow) and not long" -n $(JOBS) $(IN_ORDER) --durations=60

test-long: $(STAMP) ## what make test leaves out: Spark under the other ways to a session, its examples, sessions that are killed, chaos on machines, members, a ghost's node, overload, a lost head (50 minutes)
	$(BIN)/python -m pytest -m long --durations=20

docs: $(STAMP) ## the documents and the API reference as a searchable site: artifacts/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP) ## ruff, mypy --strict, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports

simulate: $(STAMP) ## random schedules of faults against one broker group and several: SEEDS=<how many> SEED=<first>
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --seed $(SEED)

campaign: $(STAMP) ## schedules for a time, added to what FILE has already: FOR=<40m> FILE=<totals> (ARGS=--help)
	$(BIN)/python -m tests.sim campaign $(FILE) --for $(FOR) $(ARGS)

chaos: TRIALS = 60
chaos: $(STAMP) ## real processes killed, stopped, cut off: TRIALS=<how many> SEED=<n> (60: 11 minutes; ARGS=--help)
	$(BIN)/python -m tests.chaos --fail-over --trials $(TRIALS) --seed $(SEED) $(ARGS)

spark-trials: $(STAMP) ## kills at every step of Spark's sink, every row counted: TRIALS=<how many> SEED=<n> (ARGS=--help)
	$(BIN)/python -m tests.spark_trials --trials $(TRIALS) --seed $(SEED) $(ARGS)

fence-trials: TRIALS = 100
fence-trials: $(STAMP) ## services, leader and database killed or stopped, on PostgreSQL, MariaDB and SQLite: TRIALS=<how many> SEED=<n> (100: 20 minutes; ARGS=--help)
	$(BIN)/python -m tests.fence_trials --trials $(TRIALS) --seed $(SEED) $(ARGS)

fuzz: $(STAMP) ## garbage for every decoder: EXAMPLES=<per target> SEED=<n> (20000: half an hour)
	FUZZ_EXAMPLES=$(EXAMPLES) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest tests/fuzz --timeout=3600 $(ARGS)

controls: $(STAMP) ## faults planted in the code, and how soon the simulator finds each (10 minutes; ARGS=--help)
	$(BIN)/python -m tests.controls $(ARGS)

bench: $(STAMP) ## figures and their ratio to a ceiling measured in the same run (5 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks $(ARGS)

instruments: $(STAMP) ## alert rules, Grafana board and tables of docs/metrics.md, made from the table of metrics
	$(BIN)/python -m escrowmq.cluster.exporter.rules deploy/prometheus/rules.yml
	$(BIN)/python -m escrowmq.cluster.exporter.board deploy/grafana/escrowmq.json
	$(BIN)/python -m escrowmq.cluster.exporter.metrics_doc docs/metrics.md

walk: $(STAMP) ## calls and files that one message passes, client and replicas (a minute; ARGS="--tree" lists them)
	$(BIN)/python -m benchmarks.walk $(ARGS)

spark-nodes: $(STAMP) ## Spark on nodes that are killed, a batch and a stream, by both ways to Spark on Ray (6 minutes)
	$(BIN)/python -m tests.integration.spark_nodes_scenario --mode standalone
	$(BIN)/python -m tests.integration.spark_nodes_scenario --mode raydp

stored: $(STAMP) ## how long ten million runs, 40,000 partitions and 20,000 groups stop a replica's thread (2 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.stored $(ARGS)

live: $(STAMP) ## a real cluster: ten million runs and 10,000 topics under way; a node with a gigabyte lost (15 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.live $(ARGS)

bench-spark: $(STAMP) ## Spark's source and sink beside Parquet, and a trickle's latency (10 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.spark $(ARGS)

load: $(STAMP) ## overload, a million open transactions, parked polls, dead followers (25 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.load $(ARGS)

# --no-build-isolation: what builds the package (and pyspark, which comes as source) is pinned too.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or 3.12 with venv found: install one, or run make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	touch $(STAMP)

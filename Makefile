# `make` alone lists the targets. Nothing here needs root or installs anything.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# One build for every machine: no C compiler, no C library. Only `race` needs both.
export CGO_ENABLED = 0

VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
WASI        := GOOS=wasip1 GOARCH=wasm

# The folders with sources for WASI, testdata included, which ./... leaves out.
WASI_DIRS = $(shell git ls-files -co --exclude-standard '*.go' | xargs grep -l '^//go:build wasip1' | xargs -r -n1 dirname | sort -u | sed 's,^,./,')

.PHONY: help run build plugins guests test race check cover bench clean
.PHONY: check-format check-vet check-wasi check-static check-tidy check-build check-guests check-tree

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

run: build plugins ## build, start the host on its embedded broker with ./config.toml, send sample work
	@.make/run

build: ## build bin/guesthand
	go build -ldflags '-X main.version=$(VERSION)' -o bin/guesthand ./cmd/guesthand

plugins: ## build the sample handlers into plugins/
	@.make/plugins

guests: ## rebuild the committed .wasm files whose toolchain is here
	@.make/guests

test: ## run all tests, real brokers included; the last lines say what was skipped and why
	@.make/test

race: ## run all tests under the race detector (needs a C compiler)
	@command -v "$$(go env CC)" >/dev/null || { echo "make race: the race detector needs cgo, and there is no C compiler ($$(go env CC)) here" >&2; exit 1; }
	@CGO_ENABLED=1 .make/test -race

check: check-format check-vet check-wasi check-static check-tidy check-build check-guests check-tree ## formatting, vet, staticcheck, go.mod, cross builds, rules of the tree

check-format:
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "not formatted by gofmt:"; echo "$$out"; exit 1; } >&2

check-vet:
	go vet ./... ./.make/summary
	go vet -C cmd/peerbench ./...

check-wasi:
	@for dir in $(WASI_DIRS); do echo "$(WASI) go vet $$dir"; $(WASI) go vet "$$dir"; done

check-static:
	go run $(STATICCHECK) ./...

check-tidy:
	go mod tidy -diff

check-build:
	@for os in linux darwin windows; do echo "GOOS=$$os go build ./..."; GOOS=$$os go build ./...; done

check-guests:
	@.make/guests --check

check-tree:
	go test -count=1 ./docs ./.make/summary

cover: ## run all tests and show what they cover; details in coverage.html
	@.make/test -coverprofile=coverage.out -coverpkg=./...
	@go tool cover -html=coverage.out -o coverage.html
	@go tool cover -func=coverage.out | tail -n 1

bench: ## run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...
	go test -C cmd/peerbench -run '^$$' -bench . -benchmem ./...

clean: ## remove what build and cover left; data/ and plugins/ stay
	rm -rf bin coverage.out coverage.html

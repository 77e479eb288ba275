#!/usr/bin/env bash
# Builds the plug-ins of this folder that a compiler makes: script.wasm with clang, plugin.wasm
# with AssemblyScript and Extism's development kit for it, as npm has them. What has no tool
# here stays as it is. With --check nothing is written; only clang 19's module is compared,
# since another compiler writes other code and npm needs the network.
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if command -v clang-19 >/dev/null && command -v wasm-ld-19 >/dev/null; then
	clang-19 --target=wasm32-unknown-unknown -O2 -nostdlib -fno-builtin -Wl,--no-entry -Wl,--strip-all -Wl,--stack-first \
		-z stack-size=1048576 -o "$work/script.wasm" script.c
	if ! cmp -s "$work/script.wasm" script.wasm; then
		[ "${1-}" != --check ] || { echo "extism: script.wasm is not what script.c makes; run make guests" >&2; exit 1; }
		cp "$work/script.wasm" script.wasm
		echo "extism: script.wasm rebuilt"
	fi
else
	echo "extism: clang-19 and lld-19 are not here; script.wasm stays as it is"
fi

[ "${1-}" != --check ] || exit 0
if ! command -v npm >/dev/null; then
	echo "extism: npm is not here; plugin.wasm stays as it is"
	exit 0
fi
cp plugin.ts "$work/"
cd "$work"
npm init -y >/dev/null
npm install --ignore-scripts --no-audit --no-fund --silent @extism/as-pdk@1.0.0 assemblyscript@0.28.20
npx asc plugin.ts -Oz --runtime incremental --use abort=plugin/myAbort -o plugin.wasm
cd - >/dev/null
if ! cmp -s "$work/plugin.wasm" plugin.wasm; then
	cp "$work/plugin.wasm" plugin.wasm
	echo "extism: plugin.wasm rebuilt"
fi

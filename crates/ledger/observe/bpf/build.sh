#!/bin/sh
# Builds charge.bpf.o, which is committed so that building vtax needs no clang; or, from another SOURCE, OUTPUT:
#   build.sh [OUTPUT [SOURCE]]
# Needs clang, llvm-strip and libbpf's headers (Debian: clang llvm libbpf-dev).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$(realpath -m "${1:-$here/charge.bpf.o}")
source=$(realpath "${2:-$here/charge.bpf.c}")
cd "$(dirname "$source")"
include=/usr/include/$(uname -m)-linux-gnu
case $(uname -m) in
x86_64) target=x86 ;;
aarch64) target=arm64 ;;
*) target=$(uname -m) ;;
esac
clang -O2 -g -Wall -Werror "-ffile-prefix-map=$PWD=." -target bpf "-D__TARGET_ARCH_$target" "-I$include" -c "$(basename "$source")" -o "$output"
llvm-strip -g "$output"

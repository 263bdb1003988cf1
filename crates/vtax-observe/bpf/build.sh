#!/bin/sh
# Builds charge.bpf.o, which is committed so that building vtax needs no clang.
# Needs clang, llvm-strip and libbpf's headers (Debian: clang llvm libbpf-dev).
set -eu
cd "$(dirname "$0")"
output=${1:-charge.bpf.o}
include=/usr/include/$(uname -m)-linux-gnu
case $(uname -m) in
x86_64) target=x86 ;;
aarch64) target=arm64 ;;
*) target=$(uname -m) ;;
esac
clang -O2 -g -Wall -Werror "-ffile-prefix-map=$PWD=." -target bpf "-D__TARGET_ARCH_$target" "-I$include" -c charge.bpf.c -o "$output"
llvm-strip -g "$output"

#!/bin/sh
# Builds speed.bpf.o, which is committed so that building vtax needs no clang.
# Needs clang, llvm-strip and libbpf's headers (Debian: clang llvm libbpf-dev).
set -eu
cd "$(dirname "$0")"
output=${1:-speed.bpf.o}
include=/usr/include/$(uname -m)-linux-gnu
clang -O2 -g -Wall -Werror "-ffile-prefix-map=$PWD=." -target bpf -D__TARGET_ARCH_x86 "-I$include" -c speed.bpf.c -o "$output"
llvm-strip -g "$output"

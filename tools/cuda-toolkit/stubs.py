#!/usr/bin/env python3
"""Writes stub libraries that the linker uses instead of CUDA's own.

usage: stubs.py CUDARC OUT

Writes OUT/lib{cuda,cublas,cublasLt,curand,nvrtc,nccl}.a with every function that the crate in the folder CUDARC
declares. On its first call, each function opens the real library and jumps there with its arguments unchanged. Without
that library it returns an error status. So one build of Sconce loads with and without CUDA.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# name: (folder of the crate, prefix, file, status without the file, status without the function)
LIBRARIES = {
    # CUDA_ERROR_STUB_LIBRARY, CUDA_ERROR_INSUFFICIENT_DRIVER
    "cuda": ("driver", "cu", "libcuda.so.1", 34, 35),
    # CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_NOT_SUPPORTED
    "cublas": ("cublas", "cublas", "libcublas.so.13", 1, 15),
    "cublasLt": ("cublaslt", "cublasLt", "libcublasLt.so.13", 1, 15),
    # CURAND_STATUS_INITIALIZATION_FAILED, CURAND_STATUS_INTERNAL_ERROR
    "curand": ("curand", "curand", "libcurand.so.10", 203, 999),
    # NVRTC_ERROR_INTERNAL_ERROR
    "nvrtc": ("nvrtc", "nvrtc", "libnvrtc.so.13", 11, 11),
    # ncclSystemError, ncclInvalidUsage
    "nccl": ("nccl", "nccl", "libnccl.so.2", 2, 5),
}

# Folders of the libraries: the system's search path first, then those of containers and WSL.
FOLDERS = ["", "/usr/local/cuda/lib64/", "/usr/local/nvidia/lib64/", "/usr/lib/wsl/lib/"]

# Functions that return no status but text, or a number, which is 0 without the library.
TEXTS = {
    "cublasGetStatusName",
    "cublasGetStatusString",
    "cublasLtGetStatusName",
    "cublasLtGetStatusString",
    "nvrtcGetErrorString",
    "ncclGetErrorString",
    "ncclGetLastError",
}
NUMBERS = {"cublasLtGetVersion", "cublasLtGetCudartVersion"}

REGISTERS = ["rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9"]


def functions(crate, folder, prefix):
    sources = sorted((crate / "src" / folder / "sys").rglob("*.rs"))
    text = "".join(source.read_text() for source in sources)
    found = set(re.findall(rf"fn ({prefix}[A-Z]\w*)", text))
    return sorted(name for name in found if prefix == "cublasLt" or not name.startswith("cublasLt"))


def assembly(names):
    """A jump through the table for each function, which calls `resolve` first while its entry is empty."""
    lines = [".text"]
    for i, name in enumerate(names):
        lines += [f".globl {name}", f".hidden {name}", f".type {name}, @function", f"{name}:"]
        lines += [f"movq table+{8 * i}(%rip), %r11", "testq %r11, %r11", "je 1f", "jmp *%r11"]
        lines += [f"1: movl ${i}, %r11d", "jmp first", f".size {name}, . - {name}"]
    lines += ["first:", "pushq %rbp", "movq %rsp, %rbp"]
    lines += [f"pushq %{register}" for register in REGISTERS]
    lines += ["subq $136, %rsp", "andq $-16, %rsp"]
    lines += [f"movups %xmm{i}, {16 * i}(%rsp)" for i in range(8)]
    lines += ["movl %r11d, %edi", "call resolve", "movq %rax, %r11"]
    lines += [f"movups {16 * i}(%rsp), %xmm{i}" for i in range(8)]
    lines += [f"leaq -{8 * len(REGISTERS)}(%rbp), %rsp"]
    lines += [f"popq %{register}" for register in reversed(REGISTERS)]
    lines += ["popq %rbp", "jmp *%r11"]
    return "\n".join(f'"{line}\\n"' for line in lines)


def source(names, file, absent, too_old):
    def listed(some):
        return ", ".join(f'"{name}"' for name in some)

    def kind(name):
        return "1" if name in TEXTS else "2" if name in NUMBERS else "0"

    return f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

static const char *const names[] = {{{listed(names)}}};
static const char kinds[] = {{{", ".join(map(kind, names))}}};
static const char *const folders[] = {{{listed(FOLDERS)}}};
static void *_Atomic table[{len(names)}] __attribute__((used));

static int absent(void) {{ return {absent}; }}
static int too_old(void) {{ return {too_old}; }}
static const char *text(void) {{ return "{file} was not found"; }}
static size_t zero(void) {{ return 0; }}

static void *open_library(void) {{
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {{
    char path[64];
    snprintf(path, sizeof path, "%s{file}", folders[i]);
    void *found = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (found) return found;
  }}
  return NULL;
}}

/* Two threads may run this at once: both find the same. A missing library is searched for once. */
__attribute__((used)) static void *resolve(unsigned i) {{
  static void *_Atomic library;
  static atomic_bool looked;
  if (!looked) {{
    library = open_library();
    looked = 1;
  }}
  void *found = library ? dlsym(library, names[i]) : NULL;
  if (found) return table[i] = found;
  if (kinds[i] == 1) return text;
  if (kinds[i] == 2) return zero;
  return library ? too_old : absent;
}}

__asm__({assembly(names)});
"""


def build(name, code, out):
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / f"{name}.c"
        unit.write_text(code)
        unit_object = unit.with_suffix(".o")
        subprocess.check_call(["cc", "-c", "-O2", "-fPIC", "-Wall", "-o", unit_object, unit])
        archive = out / f"lib{name}.a"
        archive.unlink(missing_ok=True)
        subprocess.check_call(["ar", "crs", archive, unit_object])


def main():
    crate, out = map(pathlib.Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    for name, (folder, prefix, file, absent, too_old) in LIBRARIES.items():
        names = functions(crate, folder, prefix)
        if not names:
            sys.exit(f"{crate} declares nothing of {name}: is this cudarc?")
        build(name, source(names, file, absent, too_old), out)
        print(f"lib{name}.a: {len(names)} functions of {file}")


main()

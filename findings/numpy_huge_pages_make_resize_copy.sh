#!/usr/bin/env bash
# `ndarray.resize` grows an array in place: numpy 2.4.6 calls realloc, and glibc moves the pages of a large block without a copy (mremap).
# But numpy asks for huge pages for arrays from 4 MiB on, by default, from the first whole page after the block's header to its end. The
# kernel keeps that range as a mapping of its own, mremap takes no range of two mappings, and realloc falls back to a new block and a copy:
# 512 MiB grow by 8 MiB in 0.4 s for 0.006 s, and both blocks are in memory together (peak 1,048 MiB for 544).
# NUMPY_MADVISE_HUGEPAGE=0 avoids it. Nobody would look for a setting of huge pages where an append runs out of memory.
# Seen with glibc 2.36 on Linux 6.18, with huge pages for memory that asks for them ("madvise").
#
# Run: ./findings/numpy_huge_pages_make_resize_copy.sh     needs python3 with venv, the package registry, and 1.5 GiB; exit 1 if that changes.
set -euo pipefail
libc=$(ldd --version 2>&1 || true)
if [[ $(uname -s) != Linux || ! ${libc,,} =~ glibc|"gnu libc" ]]; then
    echo "needs Linux with glibc"
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6

cat >grow.py <<'PY'
"""Grows 512 MiB by 8 MiB; prints the seconds and by how many MiB the peak of resident memory rises."""
import resource
import time

import numpy


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


x = numpy.empty(64 << 20, dtype=numpy.float64)
x.fill(1)
before, start = peak_mib(), time.perf_counter()
x.resize(65 << 20, refcheck=False)
print(round(time.perf_counter() - start, 3), round(peak_mib() - before))
assert x[(64 << 20) - 1] == 1 and x[-1] == 0
PY
for advice in 0 1; do
    seen=$(NUMPY_MADVISE_HUGEPAGE=$advice venv/bin/python grow.py)
    echo "NUMPY_MADVISE_HUGEPAGE=$advice: $seen (seconds, MiB)"
    rise=${seen#* }
    case $advice in
        0) ((rise < 64)) || { echo "resize copies without the advice too"; exit 1; } ;;
        1) ((rise > 400)) || { echo "resize no longer copies with the advice"; exit 1; } ;;
    esac
done

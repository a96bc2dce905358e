#!/usr/bin/env bash
# tests/gpu.sh: everything that needs a real GPU, by one command that asks nothing.
#
#   tests/gpu.sh [--out FILE.jsonl]     about 300 s on an H100, at most 460 (--budget)
#   tests/gpu.sh --quarter              what no record has yet, in one call of at most 520 s: collectives of ranks that share the GPU, each
#                                       kernel of a step, every algorithm of cuBLASLt, PyTorch compiled in all formats, a minute of load
#   tests/gpu.sh --dry-run              tiny sizes; also on the virtual GPU: tests/vgpu/run -- tests/gpu.sh --dry-run
#   tests/gpu.sh --only speed           parts whose name holds this; --list names them; --help has the rest
#
# In a folder made by launch/pack it takes the programs from there. In a checkout it builds them by cargo, or takes the
# ddp-train that DDP_TRAIN names. PyTorch's part runs where python3 (or PYTHON) has torch and sees the GPU.
#
# Parts, the most telling first: the machine; the program's own check of the GPU against the CPU; the tests that use a GPU, with
# REQUIRE_GPUS=1; several ranks on one GPU by NCCL; training on the GPU held against the CPU; graphs against eager, bit by bit; PyTorch's goldens; bf16 and tf32 against f32;
# speed beside PyTorch in the same run; compute-sanitizer. Each part has an expected time, which --list and the run print, and
# none stops the others. One that runs out of time is "not reached", which is not a failure. A file of JSON lines, written anew when
# a part ends, and a short table as the last lines.
#
# Exit 0: all passed. 1: something failed. 2: bad usage. 77: "skipped: needs a GPU"; with REQUIRE_GPUS set that is a 1.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "tests/gpu.sh: needs python3, found none (PYTHON names another)" >&2
    exit 2
fi

if [[ -e $root/PACKED ]]; then
    export PATH=$root/bin:$PATH
    export DDP_TRAIN=$root/bin/ddp-train
    export DDP_GPU_MPIRUN=$root/bin/mpirun
    export DDP_GPU_TESTS=$root/test-bin
else
    # shellcheck source=launch/mpi-env
    . "$root/launch/mpi-env"
    case " $* " in
        *" --help "* | *" -h "* | *" --list "*) ;;
        *)
            DDP_TRAIN=$("$root/launch/build")
            export DDP_TRAIN
            if [[ -z ${DDP_GPU_TESTS:-} ]] && command -v cargo >/dev/null; then
                export DDP_GPU_TESTS=${CARGO_TARGET_DIR:-$root/target}/gpu-tests
                "$root/tests/gpu/link_tests" "$DDP_GPU_TESTS"
            fi
            ;;
    esac
    # Quoted for a shell, as the other side reads it.
    export DDP_GPU_MPIRUN="mpirun ${mpi_flags[*]}"
fi

export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
exec "$python" "$root/tests/gpu" "$@"

#!/usr/bin/env bash
# launch/hosts.sh: runs ddp-train on several hosts with mpirun and a host file.
#
#   ./launch/hosts.sh HOSTFILE RANKS -- train run.toml --out /shared/runs/big
#
# HOSTFILE   one host per line, with its number of ranks (one per GPU):   node1 slots=8
#                                                                    node2 slots=8
# RANKS      ranks of the whole job, filled host by host: 16 for the file above
# after --   the arguments of ddp-train; the config, the data and --out must have the same paths on every host
#
# The host that runs this script must reach every other host by ssh without a password (try: ssh node2 true), and Open MPI and
# ddp-train must be installed on each, in the same versions and at the same paths.
#
# Environment
#   DDP_TRAIN        path of ddp-train on every host; default: this checkout's release build, else ddp-train on the PATH
#   DDP_IFACE        network interface or subnet for MPI, the same on all hosts: eth0, or 10.1.0.0/16. Set it if the
#                    job hangs at its start: hosts with Docker or several networks offer addresses that are unreachable.
#   DDP_FORWARD      names of further variables to forward to every rank, separated by spaces. Forwarded anyway, if set:
#                    LD_LIBRARY_PATH RUST_BACKTRACE RUST_LOG NO_COLOR, all that begin with DDP_, NCCL_, CUDA_, UCX_, FI_, AWS_, GOOGLE_,
#                    AZURE_ or HF_, and those of proxies (*_proxy, *_PROXY).
#   DDP_TREE_SPAWN   0: this host alone starts all daemons. Default 1: hosts start each other as a tree, which is
#                    faster with tens of hosts and needs ssh between all of them.
#   DDP_QUIET        0: mpirun adds lines of its own below those of ddp-train. Default 1: mpirun --quiet; the watchdog of ddp-train
#                    names a rank that a signal killed
#   DDP_SSH          the remote shell, default ssh with no questions asked and 10 s to connect
#
# Exit 2: bad usage. Otherwise mpirun's status; the last lines of ddp-train say whether training succeeded.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

refuse() {
    printf 'launch/hosts.sh: %s\n' "$1" >&2
    shift
    printf 'hint: %s\n' "$@" >&2
    exit 2
}

usage="./launch/hosts.sh HOSTFILE RANKS -- train run.toml   (more: the head of launch/hosts.sh)"
if (($# < 3)) || [[ $3 != -- ]]; then refuse "expected a host file, a count of ranks, and -- before ddp-train's arguments" "$usage"; fi
hostfile=$1 ranks=$2
shift 3
if (($# == 0)); then refuse "no command after --" "$usage"; fi
if [[ ! -f $hostfile || ! -r $hostfile ]]; then
    refuse "no readable host file '$hostfile' (in $PWD)" \
        "write one line per host, the count of ranks beside it:" "  node1 slots=8" "  node2 slots=8"
fi
if [[ ! $ranks =~ ^[1-9][0-9]*$ ]]; then refuse "RANKS is '$ranks', expected a whole number from 1" "$usage"; fi

# Lines without comments. Where every line states its slots, too many ranks are refused here in plain words.
lines=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$hostfile")
if [[ -z $lines ]]; then refuse "the host file '$hostfile' names no host" "one line per host: node1 slots=8"; fi
slots=$(awk '{ n = -1
               for (i = 2; i <= NF; i++) if ($i ~ /^slots=[0-9]+$/) n = substr($i, 7)
               if (n < 0) unstated = 1; else sum += n }
             END { print unstated ? "unstated" : sum }' <<<"$lines")
if [[ $slots != unstated ]] && ((ranks > slots)); then
    refuse "$ranks ranks asked for, but '$hostfile' has $slots slots" "raise slots= of its hosts, add hosts, or ask for $slots ranks"
fi

if ! version=$(mpirun --version 2>/dev/null); then
    refuse "mpirun is not on the PATH" "./launch/deps installs Open MPI or says how"
fi
if [[ $version != *"Open MPI"* && $version != *OpenRTE* ]]; then
    refuse "this mpirun is not Open MPI's: ${version%%$'\n'*}" "put Open MPI's bin folder first on the PATH"
fi

binary=${DDP_TRAIN:-${CARGO_TARGET_DIR:-$root/target}/release/ddp-train}
if [[ ! -x $binary ]]; then
    if [[ -n ${DDP_TRAIN:-} ]]; then refuse "DDP_TRAIN is '$DDP_TRAIN', where no program is" "leave it unset to take this checkout's build"; fi
    binary=$(command -v ddp-train || true)
    if [[ -z $binary ]]; then
        refuse "no ddp-train: neither built in this checkout nor on the PATH" "./launch/build builds it; DDP_TRAIN=/path names another"
    fi
fi

own_plm=${OMPI_MCA_plm:-}
# shellcheck source=launch/mpi-env
. "$root/launch/mpi-env"

flags=(--hostfile "$hostfile" -n "$ranks" --map-by slot --bind-to none)
# Open MPI 5 has no such option.
if [[ ${DDP_QUIET:-1} != 0 && $(mpirun --version) == *"(Open MPI) 4."* ]]; then flags+=(--quiet); fi

others=$(awk '{ print $1 }' <<<"$lines" | grep -vxF -e localhost -e 127.0.0.1 -e "$(uname -n)" | head -n 1 || true)
if [[ -n $others && -z ${DDP_SSH:-} ]] && ! command -v ssh >/dev/null; then
    refuse "'$others' is another host, and there is no ssh here to reach it" "install openssh-client, or name a remote shell in DDP_SSH"
fi
# mpi-env chose no remote shell where there is none.
if [[ -n $others && -z $own_plm ]]; then unset OMPI_MCA_plm; fi

# BatchMode: a host that asks for a password is an error at once, not a prompt that nobody sees.
agent=${DDP_SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}
no_tree=$((${DDP_TREE_SPAWN:-1} ? 0 : 1))
case $version in
    *" 4."*)
        flags+=(--mca plm_rsh_agent "$agent" --mca plm_rsh_no_tree_spawn "$no_tree")
        if [[ -n ${DDP_IFACE:-} ]]; then flags+=(--mca btl_tcp_if_include "$DDP_IFACE" --mca oob_tcp_if_include "$DDP_IFACE"); fi
        ;;
    *)
        # From version 5 on, the starting of daemons is PRRTE's affair, with parameters of its own.
        flags+=(--prtemca plm_ssh_agent "$agent" --prtemca plm_ssh_no_tree_spawn "$no_tree")
        if [[ -n ${DDP_IFACE:-} ]]; then flags+=(--mca btl_tcp_if_include "$DDP_IFACE" --prtemca prte_if_include "$DDP_IFACE"); fi
        ;;
esac

# An Open MPI outside the system's folders is not found on the other hosts unless it is named.
mpi_bin=$(dirname -- "$(command -v mpirun)")
if [[ $mpi_bin != /usr/bin && $mpi_bin != /bin ]]; then flags+=(--prefix "${mpi_bin%/bin}"); fi

read -r -a forward <<<"${DDP_FORWARD:-}"
forward+=(LD_LIBRARY_PATH RUST_BACKTRACE RUST_LOG NO_COLOR)
of_ranks='^(DDP|NCCL|CUDA|UCX|FI|AWS|GOOGLE|AZURE|HF)_|_(proxy|PROXY)$'
while IFS= read -r name; do forward+=("$name"); done < <(compgen -e | grep -E "$of_ranks" || true)
for name in "${forward[@]}"; do
    if [[ -n ${!name+set} ]]; then flags+=(-x "$name"); fi
done

# exec: a signal to this script reaches mpirun.
exec mpirun "${flags[@]}" "$binary" "$@"

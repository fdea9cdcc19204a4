#!/bin/bash
# Stops the daemons that up.sh started under $ROOT, by their pid files.
set -u
: "${ROOT:?}"
export SLURM_CONF="$ROOT/slurm.conf"
scancel --me 2>/dev/null
for _ in $(seq 1 50); do
    [ -z "$(squeue -h 2>/dev/null)" ] && break
    sleep 0.1
done
for file in "$ROOT"/run/slurmd.*.pid "$ROOT/run/slurmctld.pid"; do
    [ -s "$file" ] && kill "$(cat "$file")"
done
for _ in $(seq 1 50); do
    ls "$ROOT"/run/slurmd.*.pid "$ROOT/run/slurmctld.pid" >/dev/null 2>&1 || break
    sleep 0.1
done
munged --stop --socket="$ROOT/run/munge.sock" >/dev/null 2>&1
exit 0

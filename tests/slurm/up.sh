#!/bin/bash
# Brings up a Slurm of one machine for the tests: as root, without systemd, with stand-in GPUs. Needs the packages
# slurmctld, slurmd, slurm-client and munge (Debian's names). Takes about a second.
#
#     ROOT=/tmp/slurm PORT=16817 NODES=2 tests/slurm/up.sh && export SLURM_CONF=/tmp/slurm/slurm.conf
#
# Everything lies under $ROOT: keys, sockets, logs, state. down.sh stops what is started here and nothing else.
set -eu
: "${ROOT:?}" "${PORT:=16817}" "${NODES:=2}"
host=$(hostname -s)
mkdir -p "$ROOT"/{run,log,state}
# munged wants to know that nobody else can write here.
chmod 755 "$ROOT" "$ROOT"/{run,log,state}

# A key and a socket of its own; the system's munged, if any, is left alone.
(umask 077; head -c 1024 /dev/urandom >"$ROOT/munge.key")
munged --key-file="$ROOT/munge.key" --socket="$ROOT/run/munge.sock" --pid-file="$ROOT/run/munged.pid" \
    --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/run/munged.seed" 2>>"$ROOT/log/munged.err"

cat >"$ROOT/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$ROOT/run/munge.sock
CredType=cred/munge
SlurmctldPort=$PORT
SlurmctldPidFile=$ROOT/run/slurmctld.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
StateSaveLocation=$ROOT/state
SlurmdPidFile=$ROOT/run/slurmd.%n.pid
SlurmdLogFile=$ROOT/log/slurmd.%n.log
SlurmdSpoolDir=$ROOT/run/spool.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,bf_interval=5
InactiveLimit=0
KillWait=5
MinJobAge=60
GresTypes=gpu
CONF
: >"$ROOT/gres.conf"
echo "CgroupAutomount=no" >"$ROOT/cgroup.conf"
for i in $(seq 1 "$NODES"); do
    echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + i)) CPUs=1 Boards=1 SocketsPerBoard=1" \
        "CoresPerSocket=1 ThreadsPerCore=1 RealMemory=500 Gres=gpu:1 State=UNKNOWN" >>"$ROOT/slurm.conf"
    # A GPU is a device file to Slurm, and any device file will do.
    echo "NodeName=n$i Name=gpu File=/dev/null" >>"$ROOT/gres.conf"
done
echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0" >>"$ROOT/slurm.conf"

export SLURM_CONF="$ROOT/slurm.conf"
slurmctld -c -f "$SLURM_CONF"
for i in $(seq 1 "$NODES"); do
    mkdir -p "$ROOT/run/spool.n$i"
    slurmd -f "$SLURM_CONF" -N "n$i"
done
for _ in $(seq 1 300); do
    [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "$NODES" ] && exit 0
    sleep 0.1
done
echo "Slurm does not come up; its logs:" >&2
tail -n 20 "$ROOT"/log/*.log >&2
exit 1

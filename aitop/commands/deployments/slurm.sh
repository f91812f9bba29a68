#!/bin/sh
# Prolog and epilog of Slurm: an exporter runs on a node while jobs do, and writes for node_exporter's textfile collector.
#   aitop export --print slurm > /etc/slurm/aitop.sh && chmod 755 /etc/slurm/aitop.sh
#   slurm.conf:  Prolog=/etc/slurm/aitop.sh  Epilog=/etc/slurm/aitop.sh
# The folder of TEXTFILE must belong to root: the exporter has given up root's right to write into those of others.
# It never fails: a prolog that does would drain the node.
AITOP=${AITOP:-/opt/aitop/bin/aitop}
TEXTFILE=${TEXTFILE:-/var/lib/node_exporter/textfile_collector/aitop.prom}
UNIT=aitop-export

jobs_here() {
    # A folder a job, with version 2 and version 1 of control groups.
    for group in /sys/fs/cgroup/system.slice/*slurmstepd.scope/job_* /sys/fs/cgroup/cpuset/slurm/uid_*/job_*; do
        [ -d "$group" ] && [ "${group##*/job_}" != "$SLURM_JOB_ID" ] && return 0
    done
    return 1
}

case "$SLURM_SCRIPT_CONTEXT" in
prolog_slurmd)
    [ -x "$AITOP" ] || exit 0
    systemctl is-active --quiet "$UNIT" || systemd-run --quiet --collect --unit="$UNIT" \
        -p Type=notify -p WatchdogSec=3min -p SuccessExitStatus=143 -p MemoryMax=512M -p CPUQuota=25% -p Nice=10 \
        -p "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH" -p NoNewPrivileges=yes \
        "$AITOP" export --all --textfile "$TEXTFILE"
    ;;
epilog_slurmd)
    jobs_here || systemctl stop "$UNIT"
    ;;
esac >/dev/null 2>&1
exit 0

# Debian's Slurm as two nodes of one core each on this machine, as root. Sourced by the test:
#   slurm_missing            prints what is missing, nothing where all is there
#   slurm_start FOLDER       starts munge, the controller and both nodes; exports SLURM_CONF
#   slurm_stop               ends them
#   slurm_restart_controller ends the controller and starts it again

slurm_missing() {
  local program
  for program in slurmctld slurmd sbatch squeue scontrol scancel munged; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || { echo "$program is not installed"; return; }
  done
  [[ $(id -u) == 0 ]] || echo "the daemons of two nodes on one machine need root"
}

# Whether srun can start the ranks of MPI.
slurm_has_pmix() { compgen -G "/usr/lib/*/slurm*/mpi_pmix.so" >/dev/null; }

slurm_conf() {
  local host=$1
  cat <<END
ClusterName=hebb
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$slurm_port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm_folder/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$slurm_folder/state
SlurmdSpoolDir=$slurm_folder/spool-%n
SlurmctldPidFile=$slurm_folder/run/slurmctld.pid
SlurmdPidFile=$slurm_folder/run/slurmd-%n.pid
SlurmctldLogFile=$slurm_folder/slurmctld.log
SlurmdLogFile=$slurm_folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
TmpFS=$slurm_folder/tmp-%n
MpiDefault=$(slurm_has_pmix && echo pmix || echo none)
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=300
KillWait=10
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((slurm_port + 1)) CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((slurm_port + 2)) CPUs=1 RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
}

slurm_controller() {
  rm -f "$slurm_folder/run/slurmctld.pid"
  slurmctld
  slurm_await "the controller answers" 'scontrol ping | grep -q "is UP"'
}

slurm_start() {
  export PATH=$PATH:/usr/sbin:/sbin
  slurm_folder=$1
  slurm_port=$((20000 + RANDOM % 10000))
  mkdir -p "$slurm_folder"/{state,spool-n1,spool-n2,tmp-n1,tmp-n2,run}
  # Munge of our own: its folders belong to it, and no part of their paths may be written by everybody.
  mkdir -m 700 "$slurm_folder/munge"
  head -c 128 /dev/urandom >"$slurm_folder/munge/key"
  chmod 600 "$slurm_folder/munge/key"
  chmod 755 "$slurm_folder/munge" "$slurm_folder"
  munged --force --key-file="$slurm_folder/munge/key" --socket="$slurm_folder/munge/socket" --pid-file="$slurm_folder/run/munged.pid" \
    --log-file="$slurm_folder/munge/log" --seed-file="$slurm_folder/munge/seed" --num-threads=2 2>/dev/null
  slurm_conf "$(hostname -s)" >"$slurm_folder/slurm.conf"
  export SLURM_CONF=$slurm_folder/slurm.conf
  slurm_controller
  slurmd -N n1
  slurmd -N n2
  slurm_await "both nodes are idle" '[[ $(sinfo -h -t idle -o %D) == 2 ]]'
}

# Ends a daemon by its pid file and waits for its end.
slurm_end() {
  local pid
  pid=$(cat "$slurm_folder/run/$1.pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || return 0
  for _ in {1..6000}; do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
}

slurm_stop() {
  timeout 20 scancel --user=root 2>/dev/null || true
  slurm_await "the jobs have ended" '[[ -z $(squeue --noheader) ]]' 20 || true
  slurm_end slurmd-n1
  slurm_end slurmd-n2
  slurm_end slurmctld
  slurm_end munged
}

slurm_restart_controller() {
  slurm_end slurmctld
  slurm_controller
}

# slurm_await WHAT CONDITION [SECONDS]
slurm_await() {
  local end=$((SECONDS + ${3:-600}))
  until eval "$2" 2>/dev/null; do
    if ((SECONDS > end)); then
      echo "after ${3:-600} s not yet: $1" >&2
      return 1
    fi
    sleep 0.3
  done
}

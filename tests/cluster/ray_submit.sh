#!/usr/bin/env bash
# `ray up`, `ray submit` and `ray down` of cluster.local.yaml, end to end, against two machines that are reached by ssh.
#   ray_submit.sh WORK_FOLDER PYTHON     WORK_FOLDER: a new, short path. PYTHON: has Ray and this project's requirements
# The machines are namespaces: head and worker see only their own processes, /tmp and home, and the network has nothing
# but the two. So `ray stop` and `ray down` end what was started here, and no port of this host is used.
# Needs root, sshd, ssh, rsync, ip and unshare. Exit code 77: cannot run here, the last line says why.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export HEAD_IP=10.99.0.1 WORKER_IP=10.99.0.2

within() { # SECONDS COMMAND...: until it succeeds
    local end=$((SECONDS + $1))
    until "${@:2}" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within $1 s: ${*:2}" >&2; return 1; }
        sleep 0.5
    done
}

# Another /tmp and another home. Ray keeps sessions, locks and ssh connections under fixed names in /tmp, and ssh takes
# the home of the user's entry, whatever HOME says. What is needed of the real folders stays.
private() { # NAME
    mkdir -p "$WORK/$1/tmp" "$WORK/$1/home"
    instead /tmp "$WORK/$1/tmp"
    instead ~root "$WORK/$1/home"
}

instead() { # FOLDER OTHER: the other one in its place
    local path
    for path in "$ROOT" "$WORK" "$PREFIX" "$BASE"; do
        case $path in "$1"/*)
            mkdir -p "$2${path#"$1"}"
            mount --bind "$path" "$2${path#"$1"}"
            ;;
        esac
    done
    mount --rbind "$2" "$1"
}

step() { printf '\n== %s\n' "$1"; }

# As process 1 of a machine: serves ssh, and collects orphans as an init does.
machine() { # NAME
    private "$1"
    ip link set lo up
    /usr/sbin/sshd -D -e -f "$WORK/$1/sshd_config" 2>"$WORK/$1/sshd.log" &
    while :; do wait || true; sleep 0.2; done
}

# What setup_commands find: an environment in which everything to be downloaded is there already.
home() { # NAME IP
    local home=$WORK/$1/home packages
    mkdir -p "$home"
    "$PYTHON" -m venv --without-pip "$home/venv"
    packages=$(echo "$home"/venv/lib/python3*/site-packages)
    "$PYTHON" -c 'import site; print(*site.getsitepackages(), sep="\n")' >"$packages/there.pth"
    printf '#!%s\nfrom ray.scripts.scripts import main\nmain()\n' ~root/venv/bin/python >"$home/venv/bin/ray"
    printf '#!%s\nfrom pip._internal.cli.main import main\nmain()\n' ~root/venv/bin/python >"$home/venv/bin/pip"
    chmod +x "$home"/venv/bin/{ray,pip}
    cat >"$WORK/$1/sshd_config" <<CONF
ListenAddress $2:22
HostKey $WORK/host_key
AuthorizedKeysFile $WORK/key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
SetEnv PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0 PIP_ROOT_USER_ACTION=ignore RAY_USAGE_STATS_ENABLED=0 RAY_gcs_rpc_server_reconnect_timeout_s=10
CONF
}

# The shipped file with other addresses and another key, nothing else.
derive() {
    "$PYTHON" - "$ROOT/cluster.local.yaml" "$WORK/cluster.yaml" "$WORK/key" <<'PY'
import os, sys, yaml
source, target, key = sys.argv[1:]
config = yaml.safe_load(open(source))
config["provider"] |= {"head_ip": os.environ["HEAD_IP"], "worker_ips": [os.environ["WORKER_IP"]]}
config["auth"] = {"ssh_user": "root", "ssh_private_key": key}
yaml.safe_dump(config, open(target, "w"))
PY
}

# The user's machine: in the head's network, among processes of its own.
user() {
    ip link set lo up
    private user
    unshare --pid --fork --kill-child --mount --mount-proc bash "$0" --machine head &
    unshare --net bash -c 'ip link set lo up; exec unshare --pid --fork --kill-child --mount --mount-proc bash "$@"' \
        - "$0" --machine worker &
    local worker=$! mine
    mine=$(readlink /proc/self/ns/net)
    within 60 sh -c "[ \$(readlink /proc/$worker/ns/net) != '$mine' ]"
    ip link add to-worker type veth peer name to-head netns "$worker"
    ip addr add $HEAD_IP/24 dev to-worker
    ip link set to-worker up
    nsenter --target $worker --net sh -c "ip addr add $WORKER_IP/24 dev to-head; ip link set to-head up;
        ip route add default via $HEAD_IP"
    ip route add default via $WORKER_IP # Ray takes the address of the interface that leads out
    within 60 bash -c "exec 3<>/dev/tcp/$HEAD_IP/22"
    within 60 bash -c "exec 3<>/dev/tcp/$WORKER_IP/22"

    export HOME=~root RAY_USAGE_STATS_ENABLED=0
    unset RAY_AUTH_MODE RAY_ADDRESS RAY_TMPDIR
    cd "$ROOT"
    ray up --yes --no-config-cache "$WORK/cluster.yaml"
    step "up"
    within 180 nodes 2 || {
        ray exec "$WORK/cluster.yaml" 'tail -n 40 /tmp/ray/session_latest/logs/monitor*'
        false
    }
    step "joined"
    ray submit "$WORK/cluster.yaml" solve.py -- "'What is 3 + 4 * 2?'" --model simulated --engines 2 --json -q
    step "submitted"
    ray exec "$WORK/cluster.yaml" "python -m orchestrator status"
    ray down --yes "$WORK/cluster.yaml"
    step "down"
    within 180 stopped # a worker ends by itself once its head is gone, after 10 s here and 60 s by default
    step "nothing left"
}

ray() { "$PYTHON" -m ray.scripts.scripts "$@"; }
nodes() { # COUNT
    ray exec "$WORK/cluster.yaml" "python -c 'import ray; ray.init(); print(\"nodes\", len(ray.nodes()))'" | grep "nodes $1"
}
stopped() { ! pgrep -x raylet && ! pgrep -x gcs_server; }

skip() {
    echo "cannot run here: $1"
    exit 77
}

case $1 in
--machine) machine "$2" ;;
--user) user ;;
*)
    mkdir -p "$1" /run/sshd
    WORK=$(cd "$1" && pwd)
    PYTHON=$2
    PREFIX=$("$PYTHON" -c 'import sys; print(sys.prefix)')
    BASE=$("$PYTHON" -c 'import sys; print(sys.base_prefix)')
    export WORK PYTHON PREFIX BASE
    [ "$(id -u)" = 0 ] || skip "not root"
    for tool in /usr/sbin/sshd ssh ssh-keygen rsync ip unshare nsenter pgrep; do
        command -v "$tool" >/dev/null || skip "no $tool"
    done
    unshare --pid --fork --mount --mount-proc --net true 2>/dev/null || skip "no namespaces"
    ssh-keygen -q -t ed25519 -N '' -f "$WORK/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
    home head $HEAD_IP
    home worker $WORKER_IP
    derive
    exec unshare --pid --fork --kill-child --mount --mount-proc --net bash "$0" --user
    ;;
esac

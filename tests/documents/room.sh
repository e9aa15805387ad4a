# Sourced by a shell in separate namespaces: an environment in which commands run exactly as written.
#
# The ports are the real ones, because the network is separate; so are the paths, because writes go to memory. The
# checkout has a complete virtual environment. $ROOM is an empty directory, $SOURCE the repository, $PYTHON the interpreter of the tests, $WARM a
# program that answers calls of scanbridge, $WARM_SERVER the socket at which it does.
set -eu
ulimit -n 65536 || ulimit -Sn "$(ulimit -Hn)"  # as in our unit; with the usual 1024 `scanbridge check` has a warning
ip link set lo up
mount -t tmpfs tmpfs "$ROOM"
over() {  # overlay a directory: writes go to memory
    layers=$ROOM/layers/$(basename "$2")
    mkdir -p "$layers/new" "$layers/work" "$2"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$layers/new,workdir=$layers/work" "$2"
}
for directory in /etc /opt /usr/local /var/lib /var/log /var/spool; do over "$directory" "$directory"; done
rm -rf /etc/scanbridge /opt/scanbridge /var/lib/scanbridge* /var/log/scanbridge*  # as on a machine without scanbridge
over "$SOURCE" "$ROOM/checkout"
mkdir -p "$ROOM/checkout/.venv" "$ROOM/home"
mount -t tmpfs tmpfs "$ROOM/checkout/.venv"
mkdir "$ROOM/checkout/.venv/bin"
printf '#!/bin/sh\nexec %s "$@"\n' "$PYTHON" >"$ROOM/checkout/.venv/bin/python"
printf '#!/bin/sh\nexec %s -IS %s %s "$@"\n' "$PYTHON" "$WARM" "$WARM_SERVER" >"$ROOM/checkout/.venv/bin/scanbridge"
chmod 755 "$ROOM/checkout/.venv/bin/"*
touch "$ROOM/checkout/.venv/.run-ready" "$ROOM/checkout/.venv/.dev-ready"
cp "$ROOM/checkout/.venv/bin/scanbridge" /usr/local/bin/
export HOME=$ROOM/home PYTHONPATH=$SOURCE PATH=/usr/local/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin
unset SCANBRIDGE_CONFIG XDG_STATE_HOME STATE_DIRECTORY
cd "$ROOM/checkout"
set +eu

listening() {  # wait until each of these ports is open; after 90 seconds end the story with the daemons' logs
    local port deadline=$((SECONDS + 90))
    for port; do
        until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
            if [ "$SECONDS" -gt "$deadline" ]; then
                echo "nothing listens on port $port"
                tail -n 20 -v "$HOME"/*.log
                exit 1
            fi
            sleep 0.02
        done
    done
}

embedded() {  # the embedded default, with one mail in its quarantine, whose id is $ID
    scanbridge run >"$HOME/scanbridge.log" 2>&1 &
    listening 10025 9081 9082
    eicar 10025
    ID=$(scanbridge quarantine list --json --limit 1 | jq -r .id)
    [ -n "$ID" ]
}

eicar() {
    swaks --server "127.0.0.1:$1" --from bad@sender.example --to you@example.org --silent 3 \
      --body 'X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*'
}

configured() {  # write the embedded default to this file, append standard input; all commands use it
    mkdir -p "$(dirname "$1")"
    "$PYTHON" -c 'import sys, bridge.config.model; print(bridge.config.model.EMBEDDED.format(state=sys.argv[1]))' "$HOME/state" >"$1"
    cat >>"$1"
    export SCANBRIDGE_CONFIG=$1
}

journalctl() {  # there is no journal here: search the log of the embedded default; only the option -g counts
    pattern=.
    while [ $# -gt 0 ]; do
        [ "$1" != -g ] || pattern=$2
        shift
    done
    for _ in $(seq 1000); do  # the daemon writes a mail's line shortly after its reply
        ! grep -e "$pattern" "$HOME/scanbridge.log" || return 0
        sleep 0.02
    done
    return 1
}

packaged() {  # bridge and scanning service with the files of the package; delivered mail goes to a Maildir
    mkdir -p /etc/scanbridge "$HOME/state"
    cp deploy/package/*.yml /etc/scanbridge/
    sed -i "s#next_hop: .*#next_hop: maildir:$HOME/Maildir#" /etc/scanbridge/bridge.yml
    (cd /etc/scanbridge && umask 077 && scanbridge service token 2>/dev/null | tee api-token >service-token)
    export STATE_DIRECTORY=$HOME/state
    systemctl restart scanbridge-scanner
    systemctl restart scanbridge
}

systemctl() {  # there is no systemd here: `start`, `stop` and `restart`, of the two units of `packaged`
    local action=$1 unit
    shift
    for unit; do
        case $action-$unit in
        start-*.socket | stop-*.socket | stop-scanbridge-console | stop-scanbridge-digest) ;;
        stop-scanbridge-scanner) stopped scanner ;;
        stop-scanbridge) stopped bridge ;;
        start-scanbridge-scanner | restart-scanbridge-scanner)
            restarted scanner 9081 service -c /etc/scanbridge/service.yml ;;
        start-scanbridge | restart-scanbridge) restarted bridge 10025 run -c /etc/scanbridge/bridge.yml ;;
        *) return 1 ;;
        esac
    done
}

stopped() {  # name of a daemon
    if [ -e "$HOME/$1.pid" ]; then
        kill "$(cat "$HOME/$1.pid")"
        wait "$(cat "$HOME/$1.pid")"
        rm "$HOME/$1.pid"
    fi
}

restarted() {  # name, port and arguments of a daemon
    stopped "$1"
    "$PYTHON" -m bridge "${@:3}" >>"$HOME/$1.log" 2>&1 &
    echo $! >"$HOME/$1.pid"
    listening "$2"
}

mailserver() {  # Postfix at port 25, for mail to example.org, which it discards
    cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
    cat >/etc/postfix/main.cf <<END
compatibility_level = 3.6
maillog_file = /var/log/mail.log
myhostname = mx.example.org
mydestination =
relay_domains = example.org
relay_transport = discard:
alias_maps =
END
    postfix start
    listening 25
}

#!/usr/bin/env bash
# Installs the real servers that the tests talk to: `make test` calls it first.
#
# Installs only as root on a Debian-like system, removes no package, and starts no system service:
# every test runs its own private instance on loopback. Prints what could not be installed and why,
# and still exits with 0: the tests that need it are then skipped with that reason, or fail if
# CI=true. If everything is installed this takes a few milliseconds.
set -u
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# A program or file that proves the package is installed, and the package.
needed='
postfix      postfix
smtp-source  postfix
swaks        swaks
miltertest   miltertest
initdb       postgresql
clamd        clamav-daemon
c-icap       c-icap
/usr/lib/*/c_icap/virus_scan.so libc-icap-mod-virus-scan
spamd        spamd
rspamd       rspamd
redis-server redis-server
spamd        spamd
dnsmasq      dnsmasq-base
mmdebstrap   mmdebstrap
curl         curl
jq           jq
less         less
prometheus   prometheus
promtool     prometheus
rsyslogd     rsyslog
/usr/lib/*/rsyslog/lmnsd_gtls.so rsyslog-gnutls
strace       strace
7z           p7zip-full
unar         unar
zstd         zstd
/usr/lib/*/libarchive.so.13 libarchive13
unshare      util-linux
systemd-analyze systemd
ip           iproute2
haproxy      haproxy
nmap         nmap
sslscan      sslscan
man          man-db
mandoc       mandoc
rpm          rpm
minisign     minisign
gpg          gpg
gpg-agent    gpg-agent
gpgconf      gpgconf
zsh          zsh
fish         fish
ripmime      ripmime
munpack      mpack
uudeview     uudeview
tnef         tnef
ruby         ruby
javac        openjdk-17-jdk-headless
go           golang-go
node         nodejs
chromium     chromium
chromium-headless-shell chromium-headless-shell
/usr/bin/mh/mhstore nmh
/usr/lib/dovecot/imap dovecot-imapd
/usr/share/perl5/MIME/Parser.pm libmime-tools-perl
/usr/share/perl5/Email/MIME.pm libemail-mime-perl
/usr/share/perl5/Mail/AuthenticationResults.pm libmail-authenticationresults-perl
/usr/share/rubygems-integration/all/specifications/mail-*.gemspec ruby-mail
/usr/lib/*/girepository-1.0/GMime-3.0.typelib gir1.2-gmime-3.0
/usr/lib/*/girepository-1.0/Camel-1.2.typelib gir1.2-camel-1.2
/usr/lib/python3/dist-packages/gi python3-gi
php          php-cli
/usr/lib/php/*/mailparse.so php-mailparse
'

say() { echo "test-servers: $*"; }

has() {
    case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) command -v "$1" >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/$1" >/dev/null ;;
    esac
}

missing() {  # packages whose programs are not installed
    while read -r program package; do
        [ -z "$program" ] || has "$program" || echo "$package"
    done <<<"$needed" | sort -u
}

packages=$(missing)
[ -n "$packages" ] || exit 0
listed=$(echo $packages)

if [ "$(id -u)" -ne 0 ]; then
    say "not installed: $listed (only root may install; as root: apt-get install $listed)"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    say "not installed: $listed (this system has no apt-get: install them with its own package manager)"
    exit 0
fi

log=$(mktemp)
before=$(mktemp)
guard=/usr/sbin/policy-rc.d
ours=no
clean_up() {
    [ "$ours" = no ] || rm -f "$guard"
    rm -f "$log" "$before"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# invoke-rc.d runs this program before it starts a service; exit code 101 forbids it.
if [ ! -e "$guard" ]; then
    ours=yes
    printf '#!/bin/sh\nexit 101\n' >"$guard"
    chmod 755 "$guard"
fi

installed() { dpkg-query -W -f '${Package}\n' 2>/dev/null | sort -u; }

# The services of new packages would start at the next boot, which the tests do not need.
disable_new() {
    command -v systemctl >/dev/null || return 0
    installed | comm -13 "$before" - | while read -r package; do
        dpkg -L "$package" | grep -E '/systemd/system/[^/@]+\.(service|socket|timer|path)$' | while read -r unit; do
            systemctl disable --quiet "$(basename "$unit")" >>"$log" 2>&1 </dev/null
        done
    done
}

export DEBIAN_FRONTEND=noninteractive
install() {  # --no-remove: do not replace a mail server that is in use with Postfix
    apt-get install -y -qq --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}

say "installing $listed"
installed >"$before"
if command -v debconf-set-selections >/dev/null; then
    echo 'postfix postfix/main_mailer_type select No configuration' | debconf-set-selections
fi
apt-get update -qq -o DPkg::Lock::Timeout=300 </dev/null >>"$log" 2>&1
# shellcheck disable=SC2086
if ! install $packages; then
    for package in $packages; do  # one package that fails must not block the others
        install "$package"
    done
fi
disable_new

packages=$(missing)
if [ -n "$packages" ]; then
    reason=$(grep -E '^(E|W|Err):|^E ' "$log" | tail -n 1)
    say "not installed: $(echo $packages) (${reason:-apt-get failed})"
fi
exit 0

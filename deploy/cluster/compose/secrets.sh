#!/bin/sh
# Creates the secrets for compose.yaml, once. Run this as root: the containers read the secrets as user 10001.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir secrets
cd secrets
for name in api-token metrics-token nats-password database-admin-password database-password scan-database-password \
    s3-access-key s3-secret-key release-key; do
    openssl rand -hex 32 > "$name"
done
# NATS carries mail, so the program requires TLS for it, even on one machine.
new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
# shellcheck disable=SC2086
openssl req -x509 $new -days 3650 -subj "/CN=scanbridge cluster" -keyout ca-key -out ca 2> /dev/null
# shellcheck disable=SC2086
openssl req $new -subj /CN=nats -addext "subjectAltName = DNS:nats1, DNS:nats2, DNS:nats3" -keyout nats-key -out request 2> /dev/null
openssl x509 -req -in request -CA ca -CAkey ca-key -CAcreateserial -days 3650 -copy_extensions copy -out nats-certificate 2> /dev/null
rm request ca-key ca.srl
echo "SCANBRIDGE_PASSWORD=$(cat nats-password)" > nats.env
echo "DATABASE_PASSWORD=$(cat database-password)
SCAN_DATABASE_PASSWORD=$(cat scan-database-password)" > databases.env
chown 10001 ./*

#!/usr/bin/env bash
# usage: curl.sh URL [OPTION OF CURL ...]
set -euo pipefail
url=$1
shift
api=$url/api/public/lists/v1
parameters='{"borderMtaData":{"envelopeFrom":"a@example.org","envelopeRecipients":["b@example.net"]}}'
entries=$(printf ',"user%d@example.org"' {1..500})
entries=${entries:1}
found=$(mktemp)
trap 'rm -f "$found"' EXIT

ask() {  # NAME FILTER [OPTION ...]: print the name, the status and what jq finds in the answer
    local name=$1 filter=$2 status
    shift 2
    status=$(curl -sS -o "$found" -w '%{http_code}' --cacert "$CA" "$@")
    echo "$name $status $(jq -rs "$filter" "$found")"
}

submit=("$url/v1/messageQueue/submitEmail" -F "parameters=$parameters;type=application/json")
list=(-H "Authorization: apikey $KEY" -H 'Content-Type: application/json')

ask submit '.[].decision' "$@" "${submit[@]}" -H "Authorization: Bearer $TOKEN" -F "email=@$MAIL;type=message/rfc822"
ask status '.[].messageQueueStatus' "$@" -X POST "$url/v1/admin/status" -H "Authorization: Bearer $TOKEN"
ask lists '.[].listFileInfos[] | select(.listInfo.displayName == "Blocked senders").listName' "$@" \
    "$api/getLists" "${list[@]}" -d '{}'
ask add '.[].modifiedEntries' "$@" "$api/addEntries" "${list[@]}" \
    -d "{\"listName\":\"blocked-senders\",\"entries\":[$(sed 's/"[^"]*"/{"entry":&}/g' <<<"$entries")]}"
ask download length "$@" "$api/listEntries" "${list[@]}" -d '{"listName":"blocked-senders"}'
ask delete '.[].modifiedEntries' "$@" "$api/deleteEntries" "${list[@]}" \
    -d "{\"listName\":\"blocked-senders\",\"entries\":[$entries]}"
ask wrong '.[].error' "$@" "${submit[@]}" -H 'Authorization: Bearer wrong' -F "email=@-" <"$MAIL"

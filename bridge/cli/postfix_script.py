"""The functions of the scripts that `setup postfix` prints: they change, record and restore settings.

A record says what a setting was before, so that --undo can restore it: a file next to main.cf, because `postconf`
warns about parameters of main.cf that Postfix does not use. Each line has the mode, the kind of the setting, its
name, the value that we gave it and its previous value. A setting that two modes change keeps our value until both
are undone. If a setting no longer has our value, the operator has changed it since, and it is left alone.
"""

from __future__ import annotations

from bridge.cli.postfix_lines import HEADERS_BYTES

_FUNCTIONS = """\
records="$(postconf -h config_directory)/scanbridge-before"  # what was set before, for --undo
say() {{ printf 'scanbridge setup: %s\\n' "$*" >&2; }}
shown() {{  # KIND NAME: "= VALUE" as it is set now, "-" if it is not set
    case $1 in
    main) line=$(postconf -n "$2") ;;
    option) line=$(postconf -P "$2" 2>/dev/null) || : ;;
    field) line=$(postconf -F "$2" 2>/dev/null) || : ;;
    service) line=$(postconf -M "$2" 2>/dev/null) && line=${{line:+=}} || : ;;
    esac
    if [ -n "$line" ]; then printf '%s\\n' "=${{line#*=}}" | tr '\\t' ' '; else echo -; fi
}}
put() {{  # KIND NAME and "= VALUE", or "-" for none
    case $1$3 in
    main-) postconf -X "$2" ;;
    main*) postconf -e "$2 $3" ;;
    option-) postconf -PX "$2" ;;
    option*) postconf -P "$2$3" ;;
    field*) postconf -F "$2$3" ;;
    service-) postconf -MX "$2" ;;
    esac
}}
recorded() {{  # NAME COLUMN
    [ ! -f "$records" ] || awk -F '\\t' -v name="$1" -v column="$2" '$3 == name && !n++ {{ print $column }}' "$records"
}}
own() {{  # KIND NAME: as the operator set it
    now=$(shown "$1" "$2")
    if [ "$(recorded "$2" 4)" = "$now" ]; then recorded "$2" 5; else printf '%s\\n' "$now"; fi
}}
record() {{  # KIND NAME OURS BEFORE
    {{
        [ ! -f "$records" ] || ours="$3" before="$4" awk -F '\\t' -v OFS='\\t' -v mode="$mode" -v name="$2" '
            $3 == name {{ $4 = ENVIRON["ours"]; $5 = ENVIRON["before"] }} $1 != mode || $3 != name' "$records"
        printf '%s\\t%s\\t%s\\t%s\\t%s\\n' "$mode" "$1" "$2" "$3" "$4"
    }} > "$records.new"
    mv "$records.new" "$records"
}}
restore() {{  # KIND NAME: as it was before, unless it was changed since or another mode needs it
    [ -f "$records" ] || return 0
    ours=$(recorded "$2" 4)
    before=$(recorded "$2" 5)
    awk -F '\\t' -v mode="$mode" -v name="$2" '$1 != mode || $3 != name' "$records" > "$records.new"
    mv "$records.new" "$records"
    [ -n "$ours" ] && [ -z "$(recorded "$2" 4)" ] && [ "$(shown "$1" "$2")" = "$ours" ] || return 0
    [ "$before" = "$ours" ] || put "$1" "$2" "$before"
}}
restore_all() {{  # KINDS START: the recorded settings of this mode whose names begin with START
    [ -f "$records" ] || return 0
    awk -F '\\t' -v mode="$mode" -v kinds="^($1)$" -v start="$2" '
        $1 == mode && $2 ~ kinds && (start == "" || index($3, start) == 1) {{ print $2, $3 }}' "$records" |
        while read -r kind name; do restore "$kind" "$name"; done
    [ -s "$records" ] || rm -f "$records"
}}
change() {{  # KIND NAME VALUE
    now=$(shown "$1" "$2")
    before=$(own "$1" "$2")
    record "$1" "$2" "= $3" "$before"
    [ "$now" != "= $3" ] || return 0
    case $before in
    - | '= -' | '=' | "= $3") ;;
    *) say "$2 was ${{before#= }} and is now $3; --undo restores it" ;;
    esac
    put "$1" "$2" "= $3"
}}
limit() {{  # KIND NAME VALUE: keeps a smaller limit of your own
    limit=$(own "$1" "$2")
    limit=${{limit#= }}
    case $limit in
    0 | *[!0-9]* | '') change "$1" "$2" "$3" ;;
    *)
        if [ "$limit" -lt "$3" ]; then
            restore "$1" "$2"
            say "keeping $2 at $limit: your own limit is smaller than $3"
        else
            change "$1" "$2" "$3"
        fi
        ;;
    esac
}}"""

_MAILBOXES = """\
no_mailbox_limit() {  # NAME: removes the limit if it is below message_size_limit; 0 is no limit
    size=$(postconf -hx message_size_limit)
    limit=$(own main "$1")
    case $limit in
    -) limit=$(postconf -dh "$1") ;;
    *) limit=${limit#= } ;;
    esac
    case $limit in *[!0-9]* | '') return 0 ;; esac
    if [ "$limit" -gt 0 ] && { [ "$size" -eq 0 ] || [ "$limit" -lt "$size" ]; }; then
        change main "$1" 0
    else
        restore main "$1"
    fi
}"""

_SERVICES = """\
below_size_limit() {{  # BYTES, or fewer: scanned mail has more header fields, and must be within message_size_limit
    size=$(postconf -hx message_size_limit)
    less=$((size > {twice} ? size - {headers} : size / 2))
    if [ "$size" -gt 0 ] && [ "$less" -lt "$1" ]; then
        say "mail from clients is limited to $less bytes: scanned mail has more header fields, and your limit is $size"
        echo "$less"
    else
        echo "$1"
    fi
}}
own_service() {{  # NAME PARAMETER VALUE: stops if this service exists without this parameter: it is not ours
    [ "$(recorded "$1" 4)" = "=" ] || case $(shown service "$1")$(postconf -Ph "$1/$2" 2>/dev/null || :) in
    - | "=$3") ;;
    *)
        say "master.cf already has another service $1; change the address in bridge.yml, or remove the service"
        exit 78
        ;;
    esac
    record service "$1" "=" -
}}"""

_UNUSED = """\
remove_service() {{  # NAME PARAMETER VALUE: if it is ours, and no other mode needs it
    if [ -n "$(recorded "$1" 4)" ]; then
        restore service "$1"
    elif [ "$(postconf -Ph "$1/$2" 2>/dev/null)" = "$3" ]; then
        postconf -MX "$1"
    fi
}}"""


def functions(*, mode: str, is_undo: bool) -> str:
    """What the script of this mode needs."""
    parts = [f"mode={mode}", _FUNCTIONS.format()]
    if not is_undo:
        parts.append(_MAILBOXES)
    if mode != "milter":
        services = _UNUSED.format() if is_undo else _SERVICES.format(headers=HEADERS_BYTES, twice=2 * HEADERS_BYTES)
        parts.append(services)
    return "\n".join(parts)

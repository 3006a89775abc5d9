#!/usr/bin/env bash
# A worker, and a program that gives it a work, with curl (7.82 or newer) and jq:
# AGHD_API_SOCKET=… bash agent.sh worker, AGHD_API_SOCKET=… bash agent.sh give "Run the migration smoke test"
set -euo pipefail

# call METHOD PATH [JSON]: prints the answer of the daemon; fails when it refuses. Repeated while the daemon is away.
call() {
    local out
    until out=$(curl -s -X "$1" ${3:+--json "$3"} -w '\n%{http_code}' --unix-socket "$AGHD_API_SOCKET" "http://d$2") &&
        [ "${out##*$'\n'}" != 503 ]; do
        sleep 0.5
    done
    echo "${out%$'\n'*}"
    [ "${out##*$'\n'}" -lt 400 ]
}

# get FILTER JSON: a part of an answer
get() { jq -r "$1" <<< "$2"; }

# act VERB NAME FIELDS: one message of the job. Its id is the same when the work is taken again.
act() {
    local id
    id=msg_$(sha256sum <<< "$2 $opening" | cut -d ' ' -f 1)
    call POST "/v1/works/$work/$1" "$(jq -n --arg id "$id" --argjson fields "$3" '{id: $id} + $fields')"
}

# Acknowledge a message; it may have been already, with the end of its work.
ack() { call POST "/v1/inbox/$1/ack" '{}' > /dev/null || true; }

# events SEQ: the events of the work after a sequence, one a line, without end: over restarts of the daemon, each once
events() {
    local last=$1 line
    while kill -0 $$ 2> /dev/null; do
        while IFS= read -r line; do
            case $line in
                "id: "*) last=${line#id: } ;;
                "data: "*) echo "${line#data: }" ;;
            esac
        done < <(curl -sN -H "Last-Event-ID: $last" --unix-socket "$AGHD_API_SOCKET" "http://d/v1/events?work=$work")
        sleep 0.5
    done
}

# ask NUMBER QUESTION: prints the answer; fails when the work has ended
ask() {
    local asked event
    asked=$(act need-input "question $1" "$(jq -n --arg message "$2" '{$message}')") || return
    while IFS= read -r event; do
        case $(get '.work.after, (.message | .direction, .kind, .outcome) | tostring' "$event" | tr '\n' ' ') in
            completed* | failed* | canceled*) return 1 ;;
            *" in say advanced "* | *" in say unchanged "*)
                ack "$(get .seq "$event")"
                get .message.envelope.body.text "$event"
                return
                ;;
        esac
    done < <(events "$(get .seq "$asked")")
}

handle() {
    local branch passed=false
    act accept accept '{}' > /dev/null || return
    branch=$(ask 1 "Which branch?") || return
    act update update "$(jq -n --arg branch "$branch" '{message: "testing \($branch)"}')" > /dev/null || return
    [[ $text != *smoke* ]] || passed=true
    act complete complete "$(jq -n --arg branch "$branch" --argjson passed $passed \
        '{message: "tested \($branch)", result: {$branch, $passed}}')" > /dev/null
}

worker() {
    local item seq lease outcome renewing
    while item=$(call POST /v1/inbox/next '{"wait": "1m", "visibility": "1m", "others": false}'); do
        [ "$(get .item "$item")" != null ] || continue
        IFS=$'\t' read -r seq lease outcome opening work < <(
            get '.item | [.seq, .lease, .message.outcome // "none", .message.id, (.message.work_id // "" | @uri)] | @tsv' "$item"
        )
        text=$(get .item.message.envelope.body.text "$item")
        lease=$(jq -n --arg lease "$lease" '{$lease}')
        if [ "$outcome" != opened ]; then
            ack "$seq"
        else
            while sleep 20 && kill -0 $$ 2> /dev/null; do
                call POST "/v1/inbox/$seq/lease" "$(get '. + {visibility: "1m"}' "$lease")" > /dev/null || true
            done &
            renewing=$!
            handle || act fail fail '{"message": "the job failed"}' > /dev/null || true # refused when the work has ended
            kill "$renewing"
            ack "$seq"
        fi
    done
}

new_id() { echo "msg_$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"; }

give() {
    local found opened work now line
    found=$(call POST /v1/whois '{"query": "test.run", "wait": "1m", "first": true}')
    [ "$(get '.peers | length' "$found")" != 0 ] || { echo "no peer has the capability test.run" >&2 && exit 1; }
    opened=$(call POST /v1/works "$(jq -n --arg id "$(new_id)" --arg text "$1" \
        '{$id, $text, to_capability: "test.run", reactions: "none"}')")
    work=$(get .work_id "$opened")
    while now=$(call GET "/v1/works/$work?wait=1m"); do
        case $(get .work.state "$now") in
            needs_input)
                printf '%s ' "$(get .work.message "$now")"
                IFS= read -r line
                call POST "/v1/works/$work/say" \
                    "$(jq -n --arg id "$(new_id)" --arg message "$line" '{$id, $message}')" > /dev/null
                ;;
            completed | failed | canceled)
                get '.work | "\(.state) \(.message) \(.result)"' "$now"
                return
                ;;
        esac
    done
}

case ${1-} in
    worker) worker ;;
    give) give "${2-}" ;;
    *) echo "usage: agent.sh worker | give TEXT" >&2 && exit 2 ;;
esac

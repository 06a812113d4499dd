#!/usr/bin/env bash
# The same commit, built in two places, plays the same worlds byte for byte: a failure's replay command
# works for whoever checks the commit out.
#
#   bash e2e/check_replay.sh            clones HEAD twice, builds debug here and release there
#   bash e2e/check_replay.sh A B        two programs `rnic` that are built already
#
# Each program runs in a folder of its own, with its own copy of the scenarios. Compared are the captures
# and reports of runs that pass, of one that fails, and what a campaign prints and leaves.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# -eq 2 ]; then
    a=$(realpath "$1") b=$(realpath "$2")
else
    for place in one another/place; do
        git clone --quiet --no-hardlinks "$root" "$work/$place"
    done
    unset CARGO_TARGET_DIR
    (cd "$work/one" && cargo build --quiet --locked)
    (cd "$work/another/place" && cargo build --quiet --locked --release)
    a=$work/one/target/debug/rnic b=$work/another/place/target/release/rnic
fi

# play PROGRAM FOLDER: everything, in FOLDER.
play() {
    local program=$1 folder=$2 scenario
    mkdir -p "$folder" && cd "$folder"
    cp "$root"/sim/scenarios/recovery/*.toml .
    sed 's/^reconnects = .*/reconnects = 0/' loss-30-native-to-ernic.toml >failing.toml
    for scenario in loss-10-ernic-to-native loss-30-native-to-ernic loss-30-ernic-to-native failing; do
        # 1: a failing run is to be the same, too.
        status=0
        "$program" run "$scenario.toml" --out "$scenario" --json >"$scenario.json" || status=$?
        echo "$status" >"$scenario.status"
    done
    "$program" run --seed 7 --out default --json >default.json
    "$program" run --campaign 20 --seed 1 --out campaign >/dev/null 2>&1 || true
}

(play "$a" "$work/a/runs")
(play "$b" "$work/b/some/where/else")
[ "$(cat "$work/a/runs/failing.status")" = 1 ] || { echo "the failing run does not fail"; exit 1; }

checks=0
while read -r file; do
    case "$file" in
        */speed.json | *.html) continue ;; # what a clock said
        */campaign.json) continue ;; # it has times, too
    esac
    cmp "$work/a/runs/$file" "$work/b/some/where/else/$file"
    checks=$((checks + 1))
done < <(cd "$work/a/runs" && find . -type f ! -name '*.toml' | sort)
[ "$(cd "$work/a/runs" && find . -type f | sort)" = "$(cd "$work/b/some/where/else" && find . -type f | sort)" ] ||
    { echo "they leave different files"; exit 1; }
echo "JUDGE replay-elsewhere cmp: 2 checkouts, $checks checks, 0 wrong"

#!/bin/sh
# Counts the instructions of one 64-byte message through two ERNIC devices, and compares.
#
#     e2e/callgrind.sh             compare with golden/callgrind.txt
#     e2e/callgrind.sh --record    write golden/callgrind.txt
#
# Runs the throughput bench under callgrind with 100 and with 1100 exchanges of 16 messages each; the
# difference leaves setting up out. A count repeats exactly, but for one compiler and one valgrind
# only (which also says what CPU the program believes in), so with others it is printed and not judged.
#
# Exit code 1 above the recorded figure by more than 5 %; by more than 2 %, a note. 2: could not run.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
record=$root/golden/callgrind.txt
cd "$root"

case "${1-}" in
"" | --record) ;;
*)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p;}' "$0"
    exit 2
    ;;
esac
command -v valgrind >/dev/null || { echo "callgrind.sh: valgrind is not installed" >&2; exit 2; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cargo bench -q -p softrnic --bench throughput --no-run --message-format=json >"$scratch/build"
bench=$(sed -n 's/.*"executable":"\([^"]*throughput[^"]*\)".*/\1/p' "$scratch/build" | tail -n 1)
[ -x "$bench" ] || { echo "callgrind.sh: cargo built no throughput bench" >&2; exit 2; }

count() {
    valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$bench" --exchanges "$1" \
        >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 2; }
    sed -n 's/^totals: //p' "$scratch/out"
}

few=$(count 100)
many=$(count 1100)
now=$(((many - few) / 1000 / 16))
tools="$(rustc --version), $(valgrind --version), $(uname -m)"
echo "$now instructions per 64-byte message ($tools)"

if [ "${1-}" = --record ]; then
    {
        echo "# Instructions per 64-byte message: written by e2e/callgrind.sh --record."
        echo "$tools"
        echo "$now"
    } >"$record"
    exit 0
fi
[ -r "$record" ] || { echo "callgrind.sh: no $record; make it with --record" >&2; exit 2; }
recorded_tools=$(sed -n 2p "$record")
before=$(sed -n 3p "$record")
if [ "$tools" != "$recorded_tools" ]; then
    echo "not compared with $before, which was counted with $recorded_tools"
    exit 0
fi
tenths=$(((now - before) * 1000 / before))
echo "$before before: $tenths tenths of a percent"
if [ "$tenths" -gt 50 ]; then
    echo "callgrind.sh: more than 5 % above golden/callgrind.txt; find out why, or --record and say so" >&2
    exit 1
fi
[ "$tenths" -le 20 ] || echo "note: more than 2 % above golden/callgrind.txt"

#!/usr/bin/env python3
"""Check: the commands in the documents work and print what the documents show.

    check_documents.py RNIC [FOLDER]     RNIC is the built program
    check_documents.py --self-test

In a ```console block, a line `$ rnic ...` is run in a folder that is empty at first; a document's
commands follow each other. It must end with status 0, or with N where the line ends in `# exit N`.
The lines below it must appear in its output in that order; a line `...` stands for any lines, and
`...` at a line's end for the rest of it. A block that begins with ```toml NAME is written to a file of
that name before the commands behind it run. Other commands in such blocks (cargo, tshark) are not run
here. Relative links must lead to a file in the tree.
"""

import os
import re
import subprocess
import sys
import tempfile

TIMEOUT_S = 120


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    if len(sys.argv) < 2:
        print(__doc__.strip())
        return 2
    program = os.path.abspath(sys.argv[1])
    folder = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else ".")
    names = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"]
    docs = sorted(os.listdir(os.path.join(folder, "docs")))
    names += [f"docs/{name}" for name in docs if name.endswith(".md")]
    wrong, checks = [], 0
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read()
        links, broken = check_links(folder, name, text)
        ran, failed = check_commands(program, name, text)
        checks += links + ran
        wrong += broken + failed
    for text in wrong:
        print(text)
    print(f"JUDGE documents -: {len(names)} documents, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong or not checks else 0


def check_links(folder, name, text):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    targets = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    base = os.path.dirname(os.path.join(folder, name))
    broken = [target for target in targets if not os.path.exists(os.path.join(base, target))]
    return len(targets), [f"{name}: the link to {target} leads nowhere" for target in broken]


def check_commands(program, name, text):
    wrong, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for line, command, shown in commands(text):
            if command is None:
                name_of_file, lines = shown
                with open(os.path.join(folder, name_of_file), "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
                continue
            count += 1
            reason = run(program, folder, command, shown)
            if reason:
                wrong.append(f"{name}:{line}: `{command}`: {reason}")
    return count, wrong


def commands(text):
    """Line number, command and lines shown below it, for each `$ rnic` in a console block; for a file, no
    command, and its name and lines."""
    found, inside, file = [], False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside, current = line.strip() == "```console", None
            named = re.fullmatch(r"```toml ([\w.-]+)", line.strip())
            file = [] if named else None
            if named:
                found.append((number, None, (named.group(1), file)))
        elif file is not None:
            file.append(line)
        elif inside and line.startswith("$ "):
            current = (number, line[2:], [])
            if re.match(r"(\S+=\S+ )*rnic\b", line[2:]):
                found.append(current)
        elif inside and current:
            current[2].append(line)
    return found


def run(program, folder, command, shown):
    """Why the command does not do what the document says, or None."""
    expected = re.search(r"# exit (\d+)$", command)
    status = int(expected.group(1)) if expected else 0
    environment = dict(os.environ, PATH=os.path.dirname(program) + os.pathsep + os.environ["PATH"])
    environment.update(COLUMNS="120", NO_COLOR="1")
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {TIMEOUT_S} s"
    output = [line.rstrip() for line in done.stdout.decode("utf-8", errors="replace").splitlines()]
    if done.returncode != status:
        return f"exit status {done.returncode}, not {status}: {' / '.join(output[-3:])}"
    at, skipping = 0, True
    for line in (line.rstrip() for line in shown):
        if line.strip() == "...":
            skipping = True
            continue
        place = next((i for i in range(at, len(output)) if same(line, output[i])), None)
        if place is None:
            return f"'{line}' is not in its output"
        if not skipping and place != at:
            return f"'{output[at]}' comes before '{line}'"
        at, skipping = place + 1, False
    return None


def same(shown, printed):
    return printed.startswith(shown[:-3]) if shown.endswith("...") else printed == shown


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "rnic")
        with open(program, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nprintf "one\\ntwo\\nthree\\n"\nexit "${1:-0}"\n')
        os.chmod(program, 0o755)

        def findings(block):
            return check_commands(program, "a.md", f"```console\n{block}\n```\n")

        good = ["$ rnic", "$ rnic\none\nt...", "$ rnic\none\n...\nthree", "$ rnic 3  # exit 3\none"]
        bad = ["$ rnic 1", "$ rnic\nfo...", "$ rnic\none\nthree", "$ rnic  # exit 1"]
        bad.append("$ rnic\n...\ntwo\n...\none")
        with_file = "```toml x.toml\nseed = 1\n```\n```console\n$ rnic && cat x.toml\n...\nseed = 1\n```\n"
        wrong = [] if check_commands(program, "a.md", with_file) == (1, []) else ["a file is not written"]
        wrong += [f"good: {block!r}" for block in good if findings(block) != (1, [])]
        wrong += [f"bad: {block!r}" for block in bad if len(findings(block)[1]) != 1]
        if check_links(folder, "a.md", "[a](rnic) [b](gone.md) [c](https://example.org)")[0] != 2:
            wrong.append("links are not counted")
        if len(check_links(folder, "a.md", "[a](rnic) [b](gone.md)")[1]) != 1:
            wrong.append("a broken link is not found")
    for text in wrong:
        print(text)
    checks = len(good) + len(bad) + 3
    print(f"JUDGE documents-self-test -: {checks} cases, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

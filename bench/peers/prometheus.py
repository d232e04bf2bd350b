#!/usr/bin/env python3
"""Checks the text for Prometheus of a running endpoint (`Sconce.Monitor.Endpoint`). Exits with status 1 on a problem.

    pip install prometheus_client==0.26.0
    python bench/peers/prometheus.py http://127.0.0.1:9568 [--expect EXPECTED.json]

`bench/prometheus.exs` starts an endpoint with hostile labels and runs this script on it. The text is read in two ways: by
the parser of the package `prometheus_client`, and by the grammar of format 0.0.4, which is stricter. Both must find the same
series with the same values. Furthermore

    * HELP and TYPE of a family come once, and before its samples, which stand together;
    * no two series of a name have the same labels, in any order, and a label without a value counts as none;
    * the buckets of a histogram never fall, end with +Inf, and +Inf is the count;
    * each counter and each number of a histogram's values is that of `/monitor.json`. The JSON is read before and after the
      text, so the value of one that grows lies between both readings, and that of any other is equal to both.

EXPECTED.json is a list of objects with `name`, `labels` and `value`, which the text must have exactly.
"""
import argparse
import json
import math
import re
import sys
import time
import urllib.request
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

# The endpoint reads its JSON at most every 900 ms.
PAUSE_SECONDS = 1.2
# Problems that are printed.
SHOWN = 20
KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*,?)?)\}})? (\S+)")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?Inf|NaN")
PARTS = {"histogram": ["_bucket", "_sum", "_count"], "summary": ["", "_sum", "_count"]}
# Characters that `Sconce.Text` escapes: marks of direction, separators of lines, characters without a width.
HIDDEN = [(0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF),
          (0xFFF9, 0xFFFB), (0xE0000, 0xE0FFF)]
UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def unescaped(text):
    return re.sub(r'\\[\\n"]', lambda match: UNESCAPED[match[0]], text)


def series(name, labels):
    """A name and its labels in any order. Prometheus ignores a label with an empty value."""
    return name, tuple(sorted((key, value) for key, value in labels.items() if value != ""))


def strict(text, problems):
    """The families of the text, by the grammar: {name: (kind, [(sample name, labels, value)])}."""
    families, helps, current, closed = {}, set(), None, set()
    if text and not text.endswith("\n"):
        problems.append("the text does not end with a newline")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        where = f"line {number}: {line[:120]!r}"
        if line.startswith("#"):
            comment = re.fullmatch(rf"# (HELP|TYPE) ({NAME})(?: (.*))?", line, re.DOTALL)
            if not comment:
                problems.append(f"{where}: neither HELP nor TYPE")
                continue
            word, name, rest = comment.groups()
            if name != current:
                closed.add(current)
                current = name
            if name in closed:
                problems.append(f"{where}: the family {name} is in two places")
            if word == "HELP":
                if name in helps or name in families:
                    problems.append(f"{where}: HELP comes twice, or after TYPE")
                if re.search(r"\\(?![\\n])", re.sub(r"\\\\", "", rest or "")):
                    problems.append(f"{where}: an escape that HELP does not have")
                helps.add(name)
            else:
                if name in families:
                    problems.append(f"{where}: a second TYPE")
                if rest not in KINDS:
                    problems.append(f"{where}: unknown type {rest!r}")
                families[name] = (rest, [])
            continue
        sample = SAMPLE.fullmatch(line)
        if not sample:
            problems.append(f"{where}: not a sample")
            continue
        name, inner, value = sample[1], sample[2] or "", sample[7]
        if not NUMBER.fullmatch(value):
            problems.append(f"{where}: {value!r} is not a number")
            continue
        pairs = [(key, unescaped(quoted)) for key, quoted in re.findall(LABEL, inner)]
        if len({key for key, _ in pairs}) < len(pairs):
            problems.append(f"{where}: a label comes twice")
        kind, samples = families.get(current, (None, None))
        if samples is None:
            problems.append(f"{where}: no TYPE before it")
        elif name not in [current + part for part in PARTS.get(kind, [""])]:
            problems.append(f"{where}: not a sample of the {kind} {current}")
        else:
            samples.append((name, dict(pairs), float(value)))
    return families


def check_duplicates(families, problems):
    seen = {}
    for family, (_kind, samples) in families.items():
        for name, labels, _value in samples:
            key = series(name, labels)
            if key in seen:
                problems.append(f"two series are the same: {name} {labels} in {family} and {seen[key]}")
            seen[key] = family


def histograms(families, problems):
    """Checks all histograms. Returns {(name, labels): count}."""
    counts = {}
    for family, (kind, samples) in families.items():
        if kind != "histogram":
            continue
        found = defaultdict(lambda: {"buckets": [], "_sum": [], "_count": []})
        for name, labels, value in samples:
            part = name.removeprefix(family)
            if part == "_bucket":
                bound = labels.get("le")
                rest = {key: text for key, text in labels.items() if key != "le"}
                if bound is None or not NUMBER.fullmatch(bound):
                    problems.append(f"{family} {labels}: a bucket without a bound")
                    continue
                found[series(family, rest)]["buckets"].append((float(bound), value))
            else:
                found[series(family, labels)][part].append(value)
        for key, parts in found.items():
            bounds = [bound for bound, _ in parts["buckets"]]
            values = [value for _, value in parts["buckets"]]
            if len(parts["_sum"]) != 1 or len(parts["_count"]) != 1:
                problems.append(f"{key}: not one sum and one count")
                continue
            [total], [count] = parts["_sum"], parts["_count"]
            if bounds != sorted(set(bounds)):
                problems.append(f"{key}: the bounds do not rise: {bounds}")
            if values != sorted(values):
                problems.append(f"{key}: the buckets fall: {values}")
            if not bounds or bounds[-1] != math.inf:
                problems.append(f"{key}: no bucket +Inf")
            elif values[-1] != count:
                problems.append(f"{key}: +Inf is {values[-1]}, and the count {count}")
            if total < 0 or (count == 0 and total != 0):
                problems.append(f"{key}: a sum of {total} of {count} values")
            counts[key] = count
    return counts


def check_parser(text, families, problems):
    """Compares the samples of `prometheus_client` with those of the grammar. Returns their number."""
    mine = {}
    for family, (kind, samples) in families.items():
        for name, labels, value in samples:
            # The parser gives each counter a name that ends with _total.
            if kind == "counter" and not name.endswith("_total"):
                name += "_total"
            mine[name, tuple(sorted(labels.items()))] = value
    theirs, untyped = {}, set()
    try:
        for family in text_string_to_metric_families(text):
            if family.type not in ("counter", "gauge", "histogram"):
                untyped.add(family.name)
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key in theirs:
                    problems.append(f"prometheus_client finds two of {key}")
                theirs[key] = float(sample.value)
    except ValueError as error:
        problems.append(f"prometheus_client refuses the text: {error}")
        return len(theirs)
    for name in sorted(untyped):
        problems.append(f"prometheus_client finds no type of {name}")
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            problems.append(f"{key}: {mine.get(key)} by the grammar, {theirs.get(key)} by prometheus_client")
    return len(theirs)


def printable(text):
    """A label's value as the JSON shows it: characters that do not print are escaped (`Sconce.Text`)."""
    names = {"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\x1b": "\\e"}

    def shown(char):
        code = ord(char)
        if char in names:
            return names[char]
        if code < 0x20 or 0x7F <= code <= 0x9F or code == 0xAD:
            return f"\\x{code:02X}"
        if any(first <= code <= last for first, last in HIDDEN):
            return f"\\u{{{code:04X}}}"
        return char

    return "".join(map(shown, text))


def numbers(document):
    """Counters and numbers of values in the JSON: {(name, labels): [value]}. Different labels may be shown alike."""
    found = defaultdict(list)
    for metric in document["metrics"]:
        # Single sessions are not for Prometheus, which would keep a series of each for ever.
        if metric["base"].startswith("sconce_session_"):
            continue
        labels = tuple(sorted((k, v) for k, v in metric["labels"].items() if v != ""))
        if metric["kind"] == "counter":
            found[metric["base"], labels].append(metric["value"])
        elif metric["kind"] == "histogram":
            found[metric["base"], labels].append(metric["value"]["count"])
    return {key: sorted(values) for key, values in found.items()}


def check_json(families, counts, before, after, problems):
    """Compares each counter with both readings of the JSON. Returns how many stood still, and how many grew."""
    mine = defaultdict(list)
    for kind, samples in families.values():
        if kind == "counter":
            for name, labels, value in samples:
                mine[series(name, labels)].append(value)
    for key, count in counts.items():
        mine[key].append(count)
    shown = defaultdict(list)
    for (name, labels), values in mine.items():
        shown[name, tuple((key, printable(value)) for key, value in labels)] += values
    before, after, still, grew = numbers(before), numbers(after), 0, 0
    for key in sorted(shown.keys() | after.keys()):
        low, here, high = before.get(key, []), sorted(shown.get(key, [])), after.get(key, [])
        if not len(low) == len(here) == len(high):
            problems.append(f"{key}: {low} and {high} in the JSON, {here} in the text")
        elif not all(a <= b <= c for a, b, c in zip(low, here, high)):
            problems.append(f"{key}: {here} in the text, {low} before it and {high} after it in the JSON")
        elif low == high:
            still += 1
        else:
            grew += 1
    return still, grew


def check_expected(families, path, problems):
    """The labels of the app, character by character. Returns their number."""
    found = {}
    for _kind, samples in families.values():
        for name, labels, value in samples:
            found[name, tuple(sorted(labels.items()))] = value
    with open(path, encoding="utf-8") as file:
        expected = json.load(file)
    for one in expected:
        key = one["name"], tuple(sorted(one["labels"].items()))
        if found.get(key) != one["value"]:
            problems.append(f"expected {key} with {one['value']}, got {found.get(key)}")
    return len(expected)


def fetched(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode("utf-8"), answer.headers.get("Content-Type")


def main():
    parser = argparse.ArgumentParser(description="Checks the text for Prometheus of an endpoint.")
    parser.add_argument("url", help="as in http://127.0.0.1:9568")
    parser.add_argument("--expect", help="file of the values that the text must have")
    args = parser.parse_args()
    url, problems = args.url.rstrip("/"), []

    before = json.loads(fetched(url + "/monitor.json")[0])
    time.sleep(PAUSE_SECONDS)
    text, kind = fetched(url + "/metrics")
    time.sleep(PAUSE_SECONDS)
    after = json.loads(fetched(url + "/monitor.json")[0])

    if kind != "text/plain; version=0.0.4; charset=utf-8":
        problems.append(f"Content-Type is {kind}")
    families = strict(text, problems)
    check_duplicates(families, problems)
    counts = histograms(families, problems)
    parsed = check_parser(text, families, problems)
    still, grew = check_json(families, counts, before, after, problems)
    expected = check_expected(families, args.expect, problems) if args.expect else 0

    kinds = [kind for kind, _ in families.values()]
    print(f"text         {len(text.encode()):,} bytes, {len(kinds)} families: "
          + ", ".join(f"{kinds.count(kind)} of type {kind}" for kind in sorted(set(kinds))))
    print(f"samples      {sum(len(samples) for _, samples in families.values()):,} by the grammar, "
          f"{parsed:,} by prometheus_client")
    print(f"histograms   {len(counts)}, of which {sum(count > 0 for count in counts.values())} have values")
    print(f"monitor.json {still + grew} counters and histograms are the same; {grew} of them grew meanwhile")
    print(f"expected     {expected} values of the app, with their labels character by character")
    for problem in problems[:SHOWN]:
        print(f"PROBLEM: {problem}")
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

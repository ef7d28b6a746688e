"""Graphs that tests of recovery share."""


def stage(key="k string", state="n int64", inputs=("a parquet",), groups=4, output=""):
    """A stage as ``describe`` says it; an input without format is a channel."""
    given = (text.partition(" ") for text in inputs)
    return {
        "inputs": [[name, [["k", "string"]], bool(format_), format_] for name, _, format_ in given],
        "key": columns(key),
        "state": columns(state),
        "output": columns(output),
        "key-groups": groups,
    }


def columns(text):
    pairs = (c.strip().split(" ", 1) for c in text.split(";") if c.strip())
    return [list(pair) for pair in pairs]


CHAIN = {"left": stage(), "tally": stage("g int64", inputs=("left",))}


def now(**stages):
    return {**CHAIN, **stages}

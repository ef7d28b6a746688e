"""A10: sources, sinks and the storage root within each other are refused in words."""

import pytest

from absflow.errors import GraphError
from absflow.graph.places import check_places

APART = {"root": "file:/d/job", "source": "file:/d/in", "sink": "file:/d/out", "other": "file:/d/o"}
NESTED = {
    "a root in a source's folder": ({"root": "file:/d/in/job"}, "the storage root.*source 'a'"),
    "a root that is a source's folder": ({"root": "file:/d/in"}, "source 'a'.*storage root"),
    "a root where a wildcard reads": ({"source": "file:/d/j*"}, "the storage root.*source 'a'"),
    "a source in the root": ({"source": "file:/d/job/in"}, "source 'a'.*within the storage root"),
    "a sink in the root": ({"sink": "file:/d/job/out"}, "sink 'x'.*within the storage root"),
    "a sink that is the root": ({"sink": "file:/d/job/"}, "sink 'x'.*within the storage root"),
    "a sink in a source's folder": ({"sink": "file:/d/in/out"}, "sink 'x'.*source 'a' reads"),
    "a sink that is the source": ({"sink": "file:/d/in"}, "sink 'x'.*source 'a' reads"),
    "a source in a sink": ({"source": "file:/d/out/in"}, "source 'a'.*table of sink 'x'.*VACUUM"),
    "a root in a sink": ({"root": "file:/d/out/job"}, "storage root.*table of sink 'x'.*VACUUM"),
    "a sink in a sink": ({"other": "file:/d/out/o"}, "sink 'y'.*table of sink 'x'.*VACUUM"),
    "and the other way round": ({"sink": "file:/d/o/out"}, "sink 'x'.*table of sink 'y'.*VACUUM"),
}
BESIDE = {
    "apart": {},
    "a name that only begins alike": {"root": "file:/d/in-job", "sink": "file:/d/job2"},
    "a hidden folder in a source's folder": {"root": "file:/d/in/_job", "sink": "file:/d/in/.x/o"},
    "another file system": {"root": "s3a://d/in/job"},
    "a wildcard that does not match": {"source": "file:/d/i*/part=*"},
    "two sinks of one table": {"other": "file:/d/out"},
}


def check(**changes):
    places = APART | changes
    sinks = {"x": places["sink"], "y": places["other"]}
    check_places(places["root"], {"a": places["source"]}, sinks)


@pytest.mark.parametrize("what", NESTED)
def test_places_within_each_other_are_refused(what):
    """With both of them, and what to do."""
    changes, words = NESTED[what]
    with pytest.raises(GraphError, match=words):
        check(**changes)


@pytest.mark.parametrize("what", BESIDE)
def test_places_beside_each_other_are_not(what):
    """Nor those that Spark passes over."""
    check(**BESIDE[what])

"""Runs worlds with a deliberate mistake in them, until a checker says so."""


def assert_caught(monkeypatch, mutation, seeds, play, name):
    """Some world breaks a promise in these words.

    Args:
        monkeypatch: of the test.
        mutation: the patches (object, attribute, value), and the words.
        seeds: of the worlds.
        play: from a seed to its violations.
        name: of the mistake.
    """
    patches, words = mutation
    for target, attribute, wrong in patches:
        monkeypatch.setattr(target, attribute, wrong)
    for seed in seeds:
        if any(words in violation for violation in play(seed)):
            return
    raise AssertionError(f"no world of {len(seeds)} noticed that {name}")

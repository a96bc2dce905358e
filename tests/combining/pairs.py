"""Counts which pairs of values of enumerated keys were trained together, and draws runs for the pairs that chance left out."""

import itertools
import random


class Pairs:
    """Pairs of (key, value), of keys with few values and of what the table decides."""

    def __init__(self, keys):
        self.keys = keys
        self.values = {name: key.enumerated() for name, key in keys.items() if len(key.enumerated()) > 1}
        self.trained, self.refused_pairs = set(), {}

    def of(self, table, config):
        """Each enumerated key with the value that it has in a config."""
        found = []
        for name, values in self.values.items():
            value = config.get(name, self.keys[name].default)
            if value in values:
                found.append((name, str(value)))
        return found

    def add(self, table, config, ranks):
        self.trained.update(itertools.combinations(self.of(table, config), 2))

    def refused(self, table, config, message):
        """Pairs of the given keys that a refusal names."""
        named = [(name, str(of)) for name, of in config.items() if name in message and name in self.values]
        for pair in itertools.combinations(sorted(named, key=lambda of: list(self.values).index(of[0])), 2):
            self.refused_pairs.setdefault(pair, message.split("\n")[0])

    def refused_together(self, forced, message):
        """The pair of a run that was refused when only these two keys were left to blame."""
        pair = tuple(sorted(((name, str(of)) for name, of in forced.items()), key=lambda of: list(self.values).index(of[0])))
        self.refused_pairs.setdefault(pair, message.split("\n")[0])

    def refusals(self, kind_of):
        """How many pairs were refused with each kind of message, and one of them."""
        found = {}
        for pair, message in self.refused_pairs.items():
            if pair not in self.trained:
                found.setdefault(kind_of(message), []).append([list(of) for of in pair])
        return {kind: {"pairs": len(pairs), "one": pairs[0]} for kind, pairs in found.items()}

    def left(self):
        return self.all() - self.trained - set(self.refused_pairs)

    def complete(self, run, pool, seed, is_late):
        """Draws runs with the pairs that are left, until none is left or each was tried three times; returns how many."""
        draw, tried, n_runs = random.Random(f"{seed} pairs"), {}, 0
        typed = {(name, str(value)): value for name, values in self.values.items() for value in values}
        while not is_late():
            left = sorted(pair for pair in self.left() if tried.get(pair, 0) < 3)
            if not left:
                break
            batch = draw.sample(left, min(len(left), 200))
            for pair in batch:
                tried[pair] = tried.get(pair, 0) + 1
            forced = [({name: typed[name, of] for name, of in pair}, n_runs + index) for index, pair in enumerate(batch)]
            # Another run of the batch may have trained the pair meanwhile.
            list(pool.map(lambda of: None if is_late() or self.is_done(of[0]) else run(f"pair-{of[1]}", of[0]), forced))
            n_runs += len(batch)
        return n_runs

    def is_done(self, forced):
        pair = tuple((name, str(of)) for name, of in forced.items())
        return pair in self.trained or pair in self.refused_pairs

    def all(self):
        singles = [[(name, str(value)) for value in values] for name, values in self.values.items()]
        return {pair for a, b in itertools.combinations(singles, 2) for pair in itertools.product(a, b)}

    def counts(self):
        everything = self.all()
        trained = everything & self.trained
        refused = (everything & set(self.refused_pairs)) - trained
        return {"pairs": len(everything), "trained pairs": len(trained), "refused pairs": len(refused),
                "pairs left": len(everything - trained - refused)}

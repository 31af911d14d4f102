"""Engines that change what they hold, publishers with a virtual clock, and a channel that loses and reorders."""

import random

from actors.block_index import LEASE_S
from actors.messages import Reply
from actors.publisher import Publisher
from actors.rsbcm import RSBCM
from engine.base import KVEvent


class Channel:
    """faults: share of batches that meet each fault. "ignored": the index says it took what it never got."""

    KINDS = ("lost", "reply lost", "ignored", "twice", "late")

    def __init__(self, world, faults=0.0, seed=0):
        self.world = world
        self.faults = faults
        self.random = random.Random(seed)
        self.late = []
        self.batches = dict.fromkeys((*self.KINDS, "fine"), 0)

    def publish(self, data):
        fault = self.random.choice(self.KINDS) if self.random.random() < self.faults * len(self.KINDS) else "fine"
        return self.deliver(data, fault)

    def deliver(self, data, fault):
        self.batches[fault] += 1
        while self.late and self.random.random() < 0.3:
            self.world.rsbcm.apply(self.late.pop(self.random.randrange(len(self.late))))
        if fault in ("lost", "late"):
            self.late += [data] * (fault == "late")
            raise ConnectionError("no answer")
        if fault == "ignored":
            return Reply("ok")
        reply = self.world.rsbcm.apply(data)
        if fault == "twice":
            reply = self.world.rsbcm.apply(data)
        elif fault == "reply lost":
            raise ConnectionError("no answer")
        return reply


class FakeEngine:
    """Holds keys with parents and ends; every change is told to its publisher."""

    def __init__(self, world, name, incarnation=1):
        self.world, self.name, self.incarnation = world, name, incarnation
        self.held, self.keys, self.signatures = {}, [], {}
        self.publisher = Publisher(name, incarnation, world.channel.publish, clock=lambda: world.now)

    def hold(self, keys):
        parent = self.keys[-1] if self.keys else bytes(16)
        events = [KVEvent("add", key, parent, 1 + key[0]) for key in keys]
        self.keys += [key for key in dict.fromkeys(keys) if key not in self.held]
        self.held.update((event.key, (event.parent, event.end)) for event in events)
        self.publisher.note(events)

    def sign(self, keys, signature):
        signed = [key for key in keys if key in self.held]
        self.signatures.update(dict.fromkeys(signed, signature))
        self.publisher.note([KVEvent("sign", key, signature=signature) for key in keys])

    def drop(self, keys):
        events = [KVEvent("drop", key) for key in keys if self.held.pop(key, None) is not None]
        gone = {event.key for event in events}
        self.keys = [key for key in self.keys if key not in gone]
        self.signatures = {key: found for key, found in self.signatures.items() if key not in gone}
        self.publisher.note(events)


class World:
    """Engines and an index; each part may be started anew."""

    def __init__(self, names, faults=0.0, seed=0):
        self.now = 0.0
        self.rsbcm = RSBCM(lambda: self.now, LEASE_S)
        self.channel = Channel(self, faults, seed)
        self.engines = {name: FakeEngine(self, name) for name in names}

    def restart_index(self):
        self.rsbcm = RSBCM(lambda: self.now, LEASE_S)

    def restart(self, name):
        self.engines[name] = FakeEngine(self, name, self.engines[name].incarnation + 1)

    def pass_time(self, seconds):
        """Publishers speak when they want to."""
        until = self.now + seconds
        while self.now < until:
            waits = [engine.publisher.pump() for engine in self.engines.values()]
            self.now = min(until, self.now + max(min(waits), 0.001))

    def settle(self):
        """The channel works again, and what was under way arrives."""
        self.channel.faults = 0.0
        for data in self.channel.late:
            self.rsbcm.apply(data)
        self.channel.late = []
        self.pass_time(10.0)

    def agrees(self):
        self.rsbcm.check_integrity()
        holders = {name: self.rsbcm.index.live(name) for name in self.engines}
        return all(
            (holders[name].keys, holders[name].signatures) == (engine.held, engine.signatures)
            for name, engine in self.engines.items()
        )

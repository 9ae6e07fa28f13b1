"""Views that change while messages are under way, in memory: any schedule, crashes anywhere; judged by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from antecede.link import Frame
from antecede.model import Effect, Message, Packet, View
from antecede.process.core import Core, Out
from antecede.process.inputs import Input, Pass, Propose, Send, Take, Told, Turn, Withdraw
from antecede.process.views.members import Change, Joiner, Plan
from antecede.protocols import PROTOCOLS, create
from tests.view_world import World

RUN = [protocol for protocol in PROTOCOLS if protocol != "separator"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("protocol", RUN)
def test_causal_order_holds_while_processes_come_and_go(protocol, seed):
    world = World(protocol, f"{protocol} {seed}")
    for step in range(900):
        world.step(crashes=0.01)
        if step == 100:
            world.join("d")
        if step == 350:
            world.ask("b", Plan(leave=("b",)))
        if step == 450:
            world.join("e")
    world.settle()
    world.judge()
    assert {"d", "e"} <= set(world.processes)
    assert sorted(world.processes["a"].core.changing.roll.shown) == ["a", "c", "d", "e"]
    assert world.counts["crashed"] > 2


def changes(world: World, random: Random) -> None:
    """One more thing that an operator does, if there are enough members for it."""
    living = [process for process in world.alive() if not process.gone]
    leaving = {name for _, plan in world.asked for name in plan.leave}
    staying = [process.name for process in living if process.name not in leaving]
    match random.choice(["join", "leave", "remove", "remove"]):
        case "join" if len(living) < 5:
            world.join(f"n{world.counts['joining']}")
        case "leave" if len(staying) > 2:
            name = random.choice([name for name in staying if (world.protocol, name) != ("monitor", "a")])
            world.ask(name, Plan(leave=(name,)))
        case "remove" if len(staying) > 2:
            # Without its monitor, that protocol cannot go on.
            mortal = [name for name in staying if (world.protocol, name) != ("monitor", "a")]
            victim = world.processes[random.choice(mortal)]
            # Perhaps in the middle of a change, perhaps its leader.
            world.crash(victim, for_good=True)
            others = [name for name in staying if name != victim.name]
            world.ask(random.choice(others), Plan(remove=(victim.name,)))


def random_changes(protocol: str, seed: int, steps: int = 1200) -> World:
    world, random = World(protocol, f"{protocol} {seed}"), Random(f"changes {protocol} {seed}")
    for _ in range(steps):
        world.step(crashes=0.01)
        if random.random() < 0.008:
            changes(world, random)
    world.settle()
    world.judge()
    return world


@pytest.mark.parametrize("seed", [0, 1, 122])
@pytest.mark.parametrize("protocol", RUN)
def test_a_crashed_process_is_removed_whatever_else_changes(protocol, seed):
    random_changes(protocol, seed)


# Moments that random runs hardly meet


def prepare_leave(protocol: str, seed: int) -> World:
    """A run in which `c` wants to leave."""
    world = World(protocol, f"moment {protocol} {seed}")
    for _ in range(150):
        world.step()
    world.ask("c", Plan(leave=("c",)))
    return world


def steps_until(world: World, moment: Callable[[World], bool], steps: int = 3000) -> bool:
    for _ in range(steps):
        if moment(world):
            return True
        world.step()
    return False


def number(world: World, name: str) -> int:
    """The view that a process has durably; 0 if something is not."""
    process = world.processes[name]
    return process.core.changing.roll.number if process.durable == len(process.journal) else 0


def cut(world: World, name: str) -> set[int]:
    return world.processes[name].core.changing.membership.cut


@pytest.mark.parametrize("protocol", ["permit", "matrix"])
def test_what_a_leader_decided_before_it_died_is_kept_if_anyone_has_it(protocol):
    met = 0
    for seed in range(30):
        world = prepare_leave(protocol, seed)
        # c has the new view, and b, which is to lead now, has not.
        if not steps_until(world, lambda world: number(world, "c") == 2 and number(world, "b") == 1):
            continue
        met += 1
        if met > 5:
            break
        world.crash(world.processes["a"], for_good=True)
        del world.flying[:]
        world.asked.clear()
        world.ask("b", Plan(remove=("a",)))
        world.settle()
        world.judge()
        assert world.processes["b"].core.changing.roll.shown == ("b",), "c has left"
    assert met > 3


@pytest.mark.parametrize("protocol", ["permit", "matrix"])
def test_whoever_died_before_it_installed_a_view_is_not_waited_for(protocol):
    met = 0
    for seed in range(30):
        world, victim = prepare_leave(protocol, seed), "bc"[seed % 2]
        # Its leader has decided, and b dies before it hears of it; or c, which only wants to leave, does.
        if not steps_until(world, lambda world: number(world, "a") == 2 and number(world, victim) == 1):  # noqa: B023
            continue
        met += 1
        if met > 5:
            break
        world.crash(world.processes[victim], for_good=True)
        for _ in range(100):
            world.step()
        world.ask("a", Plan(remove=(victim,)))
        world.settle()
        world.judge()
    assert met > 3


def test_two_that_died_are_removed_by_two_operators():
    for seed in range(5):
        world = World("matrix", f"two {seed}")
        world.join("d")
        world.settle()
        for name in "ab":
            world.crash(world.processes[name], for_good=True)
        # Neither operator knows of the other's: each alone would ask one that is dead.
        world.ask("c", Plan(remove=("a",)))
        world.ask("d", Plan(remove=("b",)))
        world.settle()
        world.judge()
        assert world.processes["c"].core.changing.roll.shown == ("c", "d")


def test_a_removal_that_only_some_have_heard_of_is_not_forgotten():
    met = 0
    for seed in range(30):
        world = World("matrix", f"cut {seed}")
        world.join("d")
        world.settle()
        world.crash(world.processes["d"], for_good=True)
        world.drops = 0.5
        world.ask("a", Plan(remove=("d",)))
        # c hears d no more; then a dies, and b, which was told nothing, leads.
        if not steps_until(world, lambda world: cut(world, "c") == {3} and not knows(world, "b"), 400):
            continue
        met += 1
        if met > 5:
            break
        world.sync(world.processes["c"])
        world.crash(world.processes["a"], for_good=True)
        world.asked.clear()
        del world.flying[:]
        world.ask("b", Plan(remove=("a",)))
        world.settle()
        world.judge()
        assert world.processes["b"].core.changing.roll.shown == ("b", "c")
    assert met > 3


def knows(world: World, name: str) -> bool:
    """Whether a process was told that someone is to be removed."""
    membership = world.processes[name].core.changing.membership
    return bool(membership.cut or membership.wanted)


@pytest.mark.parametrize("protocol", ["permit", "matrix", "buffer"])
def test_what_arrives_of_a_removed_process_after_all_have_stopped_is_too_late(protocol):
    met = 0
    for seed in range(12):
        world = World(protocol, f"late {protocol} {seed}", drops=0.0)
        for _ in range(120):
            world.step()
        world.crash(world.processes["b"], for_good=True)
        late = [flight for flight in world.flying if flight[0] == "b" and not flight[2].bare]
        world.flying = [flight for flight in world.flying if flight[0] != "b"]
        world.ask("a", Plan(remove=("b",)))
        settled = steps_until(world, lambda world: all(is_settled(world, name) for name in "ac"))
        met += settled and bool(late)
        for flight in late:
            world.flying.append(flight)
            world.arrive(len(world.flying) - 1)
        world.settle()
        world.judge()
    assert met > 5


def is_settled(world: World, name: str) -> bool:
    return world.processes[name].core.changing.membership.settled


def test_one_that_has_not_heard_of_a_view_installs_it_before_the_next_begins():
    met = 0
    for seed in range(40):
        world = World("matrix", f"behind {seed}")
        world.join("d")
        world.settle()
        world.drops = 0.3
        world.ask("c", Plan(join=(Joiner("e", "", ("all",), "c"),)))
        # a has decided, and c has heard of it. b, which is to lead, will learn from c; d from b.
        if not steps_until(
            world, lambda world: number(world, "c") > number(world, "b") == number(world, "d") > 0
        ):
            continue
        met += 1
        if met > 2:
            break
        world.crash(world.processes["a"], for_good=True)
        del world.flying[:]
        world.drops = 0.0
        world.ask("b", Plan(remove=("a",)))
        world.settle()
        for _ in range(150):
            world.step()
        world.settle()
        world.judge()
        assert world.processes["d"].core.changing.roll.shown == ("b", "c", "d", "e")
    assert met > 2


@pytest.mark.parametrize("echo", [True, False])
def test_what_a_donor_says_before_it_gives_its_state_is_in_it_or_comes_after_it(echo):
    met = 0
    for seed in range(20):
        world = World("matrix", f"echo {echo} {seed}")
        for _ in range(60):
            world.step()
        world.ask("a", Plan(join=(Joiner("d", "", ("all",), "a"),)))
        world.idle.add("a")
        if not steps_until(world, is_owing, 1000):
            continue
        met += 1
        donor = world.processes["a"].core
        to = donor.changing.targets(["all"], echo)
        assert (donor.me in to, 3 in to) == (echo, echo)
        world.happen(world.processes["a"], Send(to, b"all"))
        world.settle()
        world.judge()
        assert (donor.me, donor.sent) in world.list_applied(world.processes["d"])
        if met > 2:
            break
    assert met > 2


def test_what_a_donor_says_before_it_gives_its_state_is_in_the_state_that_is_passed_on():
    met = 0
    for seed in range(40):
        world = World("matrix", f"heirs {seed}")
        world.ask("a", Plan(join=(Joiner("d", "", ("all",), "a"),)))
        world.idle.add("a")
        if not steps_until(world, lambda world: is_owing(world) and "d" in world.processes, 1000):
            continue
        # d waits for the state of a, and e joins by d.
        world.ask("d", Plan(join=(Joiner("e", "", ("all",), "d"),)))
        if not steps_until(world, lambda world: is_owing(world) and len(world.processes) == 5, 1000):
            continue
        met += 1
        donor = world.processes["a"].core
        to = donor.changing.targets(["all"], echo=False)
        assert to == (1, 2)
        world.happen(world.processes["a"], Send(to, b"all"))
        world.settle()
        world.judge()
        assert all((donor.me, donor.sent) in world.list_applied(world.processes[name]) for name in "de")
        if met > 2:
            break
    assert met > 2


def is_owing(world: World) -> bool:
    """The view has changed, and the application of `a` has not come so far."""
    changing = world.processes["a"].core.changing
    return bool(changing.owed) and changing.membership.going


def test_permit_lets_in_what_came_early_before_an_answer_to_it():
    view = View.of("a", "b", "c")
    a, b, c = (create("permit", view, name) for name in view.names)
    a.send("c")  # which is lost with a
    question, packets = a.send(("b", "c"))
    to_b, to_c = (packet for packet in packets if isinstance(packet, Packet))
    assert c.receive(to_c) == [], "it waits for what came before it"
    assert question in b.receive(to_b)
    b.deliver(question)
    answer, held = b.send("c")
    assert held == [], "it waits for a to permit it"
    # a is removed. All are cut off from it before any is let go.
    assert c.cut(0) == [question]
    [to_c] = [packet for packet in b.forget(0) if isinstance(packet, Packet) and packet.message == answer]
    c.receive(to_c)
    assert c.deliver(question) == [answer]


@pytest.mark.parametrize("protocol", ["matrix", "bounded", "history", "optimal"])
def test_a_message_of_a_removed_process_may_still_wait_for_one_of_a_living(protocol):
    view = View.of("a", "b", "c", "d")
    a, b, c, d = machines = [create(protocol, view, name) for name in view.names]

    def pass_on(packets: list[Effect], *to: str) -> None:
        for packet in packets:
            if isinstance(packet, Packet) and view.name(packet.dest) in to:
                machines[packet.dest].receive(packet)

    first, late = b.send(("a", "c"))
    pass_on(late, "a")
    a.deliver(first)
    answer, packets = a.send("c")
    pass_on(packets, "c")
    lost, packets = a.send(("c", "d"))
    pass_on(packets, "d")  # and what went to c is lost with a
    d.deliver(lost)
    last, packets = d.send("c")
    pass_on(packets, "c")
    # a is removed. What c has of it waits for b, whose message is still under way.
    assert [*c.cut(0), *c.forget(0)] == []
    pass_on(late, "c")
    for message in (first, answer):
        c.deliver(message)
    assert c.forget(0) == [last]


class Quartet:
    """Four processes whose frames arrive at once, but for those between pairs that are `slow`."""

    def __init__(self, protocol: str, names: str) -> None:
        view, self.slow = View(tuple(names)), set[tuple[str, str]]()
        self.cores = {name: Core.new(protocol, view, name, epoch=1) for name in names}
        self.flying: list[tuple[str, int, Frame]] = []
        for name, core in self.cores.items():
            self.flying += [(name, peer, core.hail(peer)) for peer in core.links]
        self.pump()

    def give(self, name: str, given: Input) -> None:
        self._fly(name, self.cores[name].apply(given, 0))

    def _fly(self, name: str, out: list[Out]) -> None:
        self.flying += [(name, dest, frame) for dest, frame in out]

    def pump(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let all that may arrive do so."""
        names = next(iter(self.cores.values())).view.names
        while True:
            for name, core in self.cores.items():
                if core.gathered or core.touched:
                    self._fly(name, core.turn(0))
            at = next((k for k, (s, d, _) in enumerate(self.flying) if (s, names[d]) not in self.slow), None)
            if at is None or until():
                return
            source, dest, frame = self.flying.pop(at)
            there, place = self.cores.get(names[dest]), names.index(source)
            if there is not None and place in there.links:
                self._fly(names[dest], there.arrive(place, frame, 0))

    def send(self, name: str, *to: str, payload: str) -> None:
        view = self.cores[name].view
        self.give(name, Send(tuple(sorted(map(view.id, to))), payload.encode()))
        self.pump()

    def take(self, name: str) -> list[str]:
        """The payloads of all that it can take."""
        core, taken = self.cores[name], list[str]()
        while True:
            if core.changing.ready:
                first = core.changing.ready[0]
                if isinstance(first, Change):
                    self.give(name, Pass(first.number, None, told=True))
                    continue
                message: Message | None = first
            else:
                message = core.next_message()
            if message is None:
                return taken
            self.give(name, Take(*message.id))
            taken.append(message.payload.decode())

    def enter(self, name: str) -> None:
        """One that has joined begins to live."""
        one = next(iter(self.cores.values()))
        roll = one.changing.roll
        core = self.cores[name] = Core.new(one.machine.name, View(roll.names), name, epoch=1, roll=roll)
        self.flying += [(name, peer, core.hail(peer)) for peer in core.links]

    def may_leave(self, name: str) -> bool:
        return self.cores[name].changing.may_leave

    def kill(self, name: str) -> None:
        """It dies, and what it said and nobody has got is lost with it."""
        del self.cores[name]
        self.flying = [one for one in self.flying if one[0] != name]


def test_who_was_not_told_to_go_on_by_a_leader_that_left_is_told_by_others():
    system = Quartet("matrix", "abc")
    b, c = system.cores["b"].changing, system.cores["c"].changing
    system.give("a", Propose(Plan(leave=("a",))))
    system.pump(until=lambda: c.roll.number == 2)
    system.slow = {("a", "c")}
    system.pump()
    system.kill("a")
    assert (b.membership.going, c.membership.going) == (True, False)
    # It waits for a, so an operator has a removed.
    system.give("c", Propose(Plan(remove=("a",))))
    system.pump()
    assert c.membership.going
    assert c.roll.shown == ("b", "c")


def stop_short(heard: str) -> Quartet:
    """A system of four in which b leaves, and a, which leads that, dies when only these have heard of the new view."""
    system = Quartet("matrix", "abcd")
    a = system.cores["a"].changing.membership
    system.give("b", Propose(Plan(leave=("b",))))
    system.pump(until=lambda: a.led is not None and a.led.stage == "install")
    system.slow = {("a", name) for name in "bcd" if name not in heard}
    system.pump()
    system.kill("a")
    system.slow = set()
    assert all(system.cores[name].changing.roll.number == 1 + (name in heard) for name in "bcd")
    return system


@pytest.mark.parametrize("heard", ["d", "bd"])
def test_who_waits_for_another_to_lead_tells_it_what_one_that_is_ahead_asked_for(heard):
    system = stop_short(heard)
    # d knows that b has left, and does not ask it. But c waits for b to lead.
    for _ in range(2):
        system.give("d", Propose(Plan(remove=("a",))))
        system.pump()
    for name in "cd":
        changing = system.cores[name].changing
        assert (changing.roll.shown, changing.membership.going) == (("c", "d"), True)


def test_who_waits_for_one_that_has_left_and_ended_to_lead_says_so():
    system = stop_short("bd")
    system.kill("b")
    c = system.cores["c"].changing
    system.give("c", Propose(Plan(remove=("a",))))
    system.pump()
    progress = c.membership.progress()
    assert progress is not None
    assert progress.awaits == ("b",)
    system.give("c", Propose(Plan(remove=("b",))))
    system.pump()
    assert (c.roll.shown, c.membership.going) == (("c", "d"), True)


def test_who_has_installed_a_view_waits_for_those_that_were_members_and_not_for_one_that_joins():
    system = Quartet("matrix", "abcd")
    leader, follower = (system.cores[name].changing.membership for name in "ac")
    joiner = Joiner("e", "", (), "b")
    system.give("b", Propose(Plan(join=(joiner,))))
    system.pump(until=lambda: not follower.going)
    stopped = follower.progress(down=("d", "e"))
    assert stopped is not None
    assert (stopped.stage, stopped.join, stopped.awaits) == ("follow", ("e",), ("d",))
    system.pump(until=lambda: leader.led is not None and leader.led.stage == "install")
    system.slow = {("a", "d")}
    system.pump()
    # d has not installed it. Nobody can reach e, which has not begun to live.
    assert follower.roll.shown == tuple("abcde")
    installed = follower.progress(down=("d", "e"))
    assert installed is not None
    assert (installed.stage, installed.join, installed.awaits) == ("follow", ("e",), ("d",))
    alone = follower.progress(down=("e",))
    assert alone is not None
    assert alone.awaits == ("a",), "who leads says for whom it waits"


@pytest.mark.parametrize("late", [False, True])
def test_who_learns_as_it_leads_that_it_has_left_tells_those_that_follow_it(late):
    system = stop_short("d")
    # b leads instead of a: c stops for it before d says, or after, that b has left.
    system.slow = {("b", "c")} if late else {("d", "b")}
    system.give("c", Propose(Plan(remove=("a",))))
    system.pump()
    system.slow = set()
    system.pump()
    assert not system.cores["b"].changing.membership.is_member
    system.give("c", Propose(Plan(remove=("a",))))
    system.pump()
    for name in "cd":
        changing = system.cores[name].changing
        assert (changing.roll.shown, changing.membership.going) == (("c", "d"), True)


def test_a_leader_that_left_stays_removed_when_a_join_is_withdrawn():
    system = Quartet("matrix", "abc")
    b, c = system.cores["b"].changing, system.cores["c"].changing
    system.give("a", Propose(Plan(leave=("a",))))
    system.pump(until=lambda: b.roll.number == c.roll.number == 2)
    system.kill("a")
    # b leads instead of a. Before c has stopped, someone is to join, and then is not.
    system.slow = {("c", "b")}
    system.give("b", Propose(Plan(join=(Joiner("d", "", (), "b"),), remove=("a",))))
    system.pump()
    system.give("b", Withdraw(("d",)))
    system.pump()
    system.slow.clear()
    system.pump()
    assert b.membership.going
    assert c.membership.going
    assert b.roll.shown == c.roll.shown == ("b", "c")


@pytest.mark.parametrize("late", [False, True])
def test_who_has_left_without_knowing_it_and_leads_is_told_the_view_that_it_left_with_or_nothing(late):
    system = Quartet("matrix", "abcd")
    b, c = system.cores["b"], system.cores["c"].changing
    system.give("b", Propose(Plan(leave=("b",))))
    system.pump(until=lambda: system.cores["a"].changing.roll.number == 2)
    system.slow = {("a", "b"), ("a", "d")}
    system.pump()
    system.kill("a")
    # c knows the view without b. Both begin to lead, instead of a; of b, c hears later.
    system.slow = {("b", "c"), ("b", "d")}
    system.give("d", Propose(Plan(remove=("a",))))
    system.pump(until=lambda: c.roll.number == 3 if late else c.membership.promised == 3)
    system.slow = {("d", "c"), ("b", "d")}
    system.pump()
    assert not b.refused
    assert b.changing.roll.number == (1 if late else 2)
    system.slow.clear()
    system.pump()
    assert c.membership.going
    assert c.roll.shown == ("c", "d")
    assert not any(core.refused for core in system.cores.values())


@pytest.mark.parametrize("overtaken", [False, True])
def test_who_wanted_to_leave_before_another_joined_by_it_gives_the_state_first(overtaken):
    system = Quartet("matrix", "abc")
    a, b = system.cores["a"].changing, system.cores["b"].changing
    system.give("b", Propose(Plan(join=(Joiner("d", "", (), "b"),))))
    system.pump(until=lambda: b.membership.reported is not None)
    assert system.may_leave("b")
    system.give("b", Propose(Plan(leave=("b",))))
    system.give("b", Turn())
    wish = system.flying.pop()
    if not overtaken:
        system.flying.insert(0, wish)
    system.pump()
    system.enter("d")
    system.pump()
    if overtaken:
        system.flying.append(wish)
        system.pump()
    assert not system.may_leave("b")
    assert a.roll.shown[1:] == ("b", "c", "d")
    system.give("b", Pass(b.roll.number, b"state", told=True))
    system.pump()
    assert system.take("d") == ["state"]
    system.give("b", Propose(Plan(leave=("b",))))
    system.pump()
    assert a.roll.shown == ("a", "c", "d")


def test_a_state_that_was_given_has_arrived_before_whoever_gave_it_leaves():
    system = Quartet("matrix", "abc")
    b = system.cores["b"].changing
    system.give("b", Propose(Plan(join=(Joiner("d", "", (), "b"),))))
    system.pump()
    system.enter("d")
    system.pump()
    system.slow = {("b", "d")}
    system.give("b", Pass(b.roll.number, b"state", told=True))
    assert not system.may_leave("b")
    system.pump()
    assert not system.may_leave("b")
    system.slow.clear()
    system.pump()
    system._fly("d", system.cores["d"].tick(1, 10**9))
    system.pump()
    assert system.may_leave("b")
    assert system.take("d") == ["state"]


NAMING = ["contexts", "bounded", "sparing", "history", "optimal", "matrix"]


@pytest.mark.parametrize("protocol", NAMING)
def test_what_a_lost_message_alone_told_of_still_comes_first(protocol):
    system = Quartet(protocol, "ecdr")
    system.slow = {("c", "d"), ("r", "d")}
    system.send("c", "d", "r", payload="first")
    system.take("r")
    system.send("r", "d", payload="lost")  # It alone tells d that what follows it follows the first one.
    system.send("r", "e", payload="hint")
    system.take("e")
    system.send("e", "d", payload="last")
    system.kill("r")
    assert system.take("d") == []
    # d settles, and gives up what is lost, before the first message arrives.
    system.give("e", Propose(Plan(remove=("r",))))
    system.pump()
    system.slow = set()
    system.pump()
    assert system.cores["d"].changing.roll.shown == ("e", "c", "d")
    assert system.take("d") == ["first", "last"]


@pytest.mark.parametrize("names", ["ecdrs", "ecdsr"])
@pytest.mark.parametrize("protocol", NAMING)
def test_order_that_is_lost_with_two_removed_at_once_is_told(protocol, names):
    system = Quartet(protocol, names)
    system.slow = {("r", "d"), ("s", "d")}
    system.send("r", "c", "d", payload="lost")
    system.take("c")
    system.send("c", "d", "s", payload="first")
    system.take("s")
    system.send("s", "d", payload="lost too")
    system.send("s", "e", payload="hint")
    system.take("e")
    system.send("e", "d", payload="last")
    assert system.take("d") == []
    system.kill("r")
    system.kill("s")
    system.give("e", Propose(Plan(remove=("r", "s"))))
    system.pump()
    change = system.cores["d"].changing.ready[-1]
    assert isinstance(change, Change)
    assert {lost.sender for lost in change.lost} == {"r", "s"}
    taken = system.take("d")
    assert sorted(taken) == ["first", "last"]
    if protocol == "matrix":
        assert (taken, change.unordered) == (["first", "last"], ())
    else:
        assert set(change.unordered) == {("c", 1), ("e", 1)}


def test_what_happened_is_the_same_when_it_is_replayed():
    """A report that followed from a frame which is in no journal would be made up by the next life."""
    for seed in range(10):
        world = prepare_leave("matrix", seed)
        for _ in range(30):
            for _ in range(10):
                world.step()
            process = world.random.choice(world.alive())
            again = Core.restore(process.born.snapshot())
            for given in process.journal:
                again.apply(given, 0)
            assert again.changing.snapshot() == process.core.changing.snapshot()


# What an application is told, and what it takes back


def test_a_change_is_told_again_until_the_application_says_that_it_was():
    world = World("matrix", "told")
    a = world.processes["a"]
    world.idle.add("a")
    world.ask("c", Plan(leave=("c",)))
    for _ in range(2000):
        world.step()
    while isinstance(first := a.core.changing.ready[0], Message):
        world.happen(a, Take(*first.id))
    change = a.core.changing.ready[0]
    assert isinstance(change, Change)
    world.happen(a, Pass(change.number, None, told=False))
    for _ in range(2):
        # The callback is under way, and the process is killed: from the inputs, then from a snapshot.
        world.sync(a)
        world.crash(a)
        assert a.core.untold == [change]
        a.core = Core.restore(a.core.snapshot())
        assert a.core.untold == [change]
    world.happen(a, Told(change.number))
    world.sync(a)
    world.crash(a)
    assert not a.core.untold


@pytest.mark.parametrize("by", ["a", "c"])
def test_a_join_while_a_member_is_down_says_what_it_waits_for_and_can_be_withdrawn(by):
    world = World("matrix", f"withdrawn {by}", drops=0.0)
    for _ in range(200):
        world.step()
    world.settle()
    a, c = world.processes["a"], world.processes["c"]
    world.processes["b"].dead = True  # It is down, and not removed.
    plan = Plan(join=(Joiner("d", "", ("all",), by),))
    world.happen(world.processes[by], Propose(plan))
    for _ in range(400):
        world.step()
    progress = a.core.changing.membership.progress()
    assert progress is not None
    assert (progress.stage, progress.leader, progress.awaits, progress.join) == ("stop", "a", ("b",), ("d",))
    followed = c.core.changing.membership.progress()
    assert followed is not None
    assert (followed.stage, followed.awaits) == ("follow", ("a",))
    assert not a.core.changing.membership.going
    world.happen(world.processes[by], Withdraw(("d",)))
    for _ in range(400):
        world.step()
    for process in (a, c):
        membership = process.core.changing.membership
        assert membership.going, "sends go on"
        assert membership.progress() is None
        assert membership.roll.number == 1
        assert "d" not in membership.roll.names, "no ghost is left"
    # It comes back, hears of all of it in some order, and the next one that joins does.
    world.processes["b"].dead = False
    world.join("e")
    world.settle()
    world.judge()
    assert "e" in a.core.changing.roll.shown

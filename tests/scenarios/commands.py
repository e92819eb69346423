"""The words of a scenario: each command is one sentence, a pattern here, and a function that obeys it.

====================================  ==================================================================
``3 replicas``                        a new group, r0 to r2; nothing has happened yet
``elect r0``                          only r0 ticks until it leads and its first entry is committed
``only r1 r2 tick``, ``all tick``     who does not tick begins nothing, and still answers what arrives
``wait 2 s``                          time passes, and all mail is delivered
``r1 stands``, ``r1 stands in 1 s``   its election is due at its next tick, or not before
``cut off r0``, ``cut r0 from r1``    nothing passes there, which nobody notices; until ``heal``
``lose votes from r1 to r2``          nor messages of this kind (``group.KINDS``); until ``heal``.
                                      ``lose everything but rejoin answers``: all but these
``hold votes``                        such mail waits until ``deliver votes from r1``, or ``deliver all``
``r1 notices that r0 is gone``        its link breaks; ``r1 meets r0``: it is up again
``r2 asks r1 for votes in term 7``    at once, without asking first who would agree
``tell r2 of term 4``                 as a replica of this later term would
``r0 proposes x y``                   two entries; ``n1..n40``: forty. What becomes of them is said later
``r0 adds r3``                        a step of a change: adds, promotes, removes, drops
``r0 hands over to r1``               ``r0 hands over``: to whoever is best
``r3 joins``                          a new and empty replica, which knows the others; not a member yet
``stop r1``, ``power cut r1``         its process ends; with the power, what was not synced is lost
``start r1``                          as a broker starts: with repair, or a copy of a leader's log
``empty r1``                          its directory is lost while it is stopped
``r1 comes back empty``               its disk is replaced, which it knows; the links fill it
``the disk of r1 hangs``              its syncs do not end; ``works``: they do again
``damage entry 5 of r1``              one bit of it flips on the disk
``tear the log of r1``                its newest file ends three bytes early
``r1 reads its log``                  and notices what is damaged; ``r1 mends its log``: from its peers
``r1 ends for a copy``                a late message makes it believe that it is too far behind
``r0 takes a snapshot``               and drops its log before that
``show``, ``show r0 r1``              role, term, vote, end of the log, commit index, damaged entries
``show logs``                         every entry, by terms: a value, ``-`` for the entry that opens a term
``show members``, ``show values``     by which members each counts; what each has applied
====================================  ==================================================================

What happened meanwhile is said first, in its order; then who began or ceased to lead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from escrowmq.replication.format.codec import MEMBERSHIP
from escrowmq.replication.raft.members import Act
from escrowmq.replication.raft.node import RaftConfig
from escrowmq.replication.raft.pysync import LEADER
from tests.scenarios.group import KINDS, Group, Replica, is_one

Lines = Iterator[str] | None
Function = Callable[..., Lines]
COMMANDS: list[tuple[re.Pattern[str], Function]] = []
CANDIDATE = 1  # a role between those that raft/pysync.py names
WHO, KIND = r"(r\d(?: r\d)*)", f"({'|'.join(KINDS)})"
ACTS = {"adds": Act.ADD, "promotes": Act.PROMOTE, "removes": Act.REMOVE, "drops": Act.DROP}


def says(pattern: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        COMMANDS.append((re.compile(pattern.replace("WHO", WHO).replace("KIND", KIND)), function))
        return function

    return register


class Scene:
    """One group, and what its scenario has heard of it."""

    def __init__(self) -> None:
        self.group = Group([])
        self.leads: dict[str, int] = {}

    def obey(self, line: str) -> list[str]:
        """What this command says. A failure is said, too, so that it can be read where it happened."""
        try:
            for pattern, function in COMMANDS:
                if (found := pattern.fullmatch(line)) is not None:
                    said = list(function(self, *found.groups()) or ())
                    return self.news() + said
            return [f"there is no such command: {line}"]
        except Exception as error:
            return [*self.news(), f"broken, {type(error).__name__}: {error}"]

    def news(self) -> list[str]:
        said, self.group.news = self.group.news, []
        leads = {name: one.term() for name, one in self.group.up.items() if one.is_leader()}
        gone = [
            f"{name} no longer leads" for name in self.leads if name in self.group.up and name not in leads
        ]
        new = [f"{name} leads in term {term}" for name, term in leads.items() if self.leads.get(name) != term]
        self.leads = leads
        return [*said, *gone, *new]


# ------------------------------------------------------------------ time and the network
@says(r"(\d) replicas?(?:, WHO appl(?:y|ies) slowly)?")
def replicas(scene: Scene, count: str, slow: str | None) -> Lines:
    configs = dict.fromkeys((slow or "").split(), RaftConfig(apply_chunk=1))
    scene.group, scene.leads = Group([f"r{n}" for n in range(int(count))], configs), {}
    return None


@says("elect (r.)")
def elect(scene: Scene, name: str) -> Lines:
    scene.group.elect(name)
    return None


@says("(?:only WHO|(all|none)) ticks?")
def ticking(scene: Scene, who: str | None, how_many: str | None) -> Lines:
    scene.group.awake = set(scene.group.names if how_many == "all" else (who or "").split())
    return None


@says(r"wait ([\d.]+) s")
def wait(scene: Scene, seconds: str) -> Lines:
    scene.group.run(float(seconds))
    return None


@says(r"(r.) stands(?: in ([\d.]+) s)?")
def stands(scene: Scene, name: str, seconds: str | None) -> Lines:
    core = scene.group.up[name].raft._core
    core.hold_election(float(seconds)) if seconds else core.campaign_at_next_tick()
    return None


@says(r"(r.) asks WHO for votes in term (\d+)")
def ask_for_votes(scene: Scene, candidate: str, voters: str, term: str) -> Lines:
    group = scene.group
    journal = group.up[candidate].journal
    if journal.getCurrentTerm() < int(term):
        group.up[candidate].raft._core.step_down(int(term))
        journal.setCurrentTerm(int(term), candidate)
    last = {"last_log_index": journal.last_index, "last_log_term": journal.last_term}
    for voter in voters.split():
        group.post(candidate, voter, {"type": "request_vote", "term": int(term), **last})
    group.deliver_all()
    return None


@says("cut off WHO")
def cut_off(scene: Scene, who: str) -> Lines:
    scene.group.isolate(*who.split())
    return None


@says("cut (r.) from WHO")
def cut(scene: Scene, one: str, others: str) -> Lines:
    scene.group.cut |= {frozenset((one, other)) for other in others.split()}
    return None


@says("lose (everything but )?KIND(?: from (r.))?(?: to (r.))?")
def lose(scene: Scene, others: str | None, kind: str, sender: str | None, receiver: str | None) -> Lines:
    kinds = set(KINDS) - {"everything", kind} if others else {kind}
    scene.group.lost += [(one, sender, receiver) for one in kinds]
    return None


@says("heal")
def heal(scene: Scene) -> Lines:
    scene.group.heal()
    return None


@says("hold KIND(?: from (r.))?(?: to (r.))?")
def hold(scene: Scene, kind: str, sender: str | None, receiver: str | None) -> Lines:
    scene.group.keep = lambda mail: is_one(mail, kind, sender, receiver)
    return None


@says("deliver (?:KIND|all)(?: from (r.))?(?: to (r.))?( twice)?")
def deliver(
    scene: Scene, kind: str | None, sender: str | None, receiver: str | None, twice: str | None
) -> Lines:
    group = scene.group
    ready = [mail for mail in group.kept if is_one(mail, kind or "everything", sender, receiver)]
    group.kept = [mail for mail in group.kept if mail not in ready]
    for mail in ready * (2 if twice else 1):
        group.hand_over(mail)
    if kind is None:
        group.keep = lambda mail: False
    group.deliver_all()
    return None


@says("(r.) (meets|notices that) WHO(?: is gone)?")
def link(scene: Scene, name: str, how: str, others: str) -> Lines:
    raft = scene.group.up[name].raft
    for other in others.split():
        (raft.connected if how == "meets" else raft.disconnected)(other)
    return None


@says(r"tell (r.) of term (\d+)")
def tell(scene: Scene, name: str, term: str) -> Lines:
    other = next(peer for peer in scene.group.names if peer != name)
    scene.group.up[name].raft.deliver(other, {"type": "stale_term", "term": int(term)})
    return None


# ------------------------------------------------------------------ what a leader is asked for
@says("(r.) proposes (.+)")
def propose(scene: Scene, name: str, what: str) -> Lines:
    for label in what.split():
        if (many := re.fullmatch(r"([a-z]+)1\.\.\1(\d+)", label)) is not None:
            values = [b"%s%d" % (many[1].encode(), n + 1) for n in range(int(many[2]))]
            scene.group.propose(name, label, values)
        else:
            scene.group.propose(name, label, [label.encode()])
    return None


@says(f"(r.) ({'|'.join(ACTS)}) (r.)")
def change(scene: Scene, leader: str, act: str, replica: str) -> Lines:
    scene.group.ask(leader, ACTS[act], replica)
    return None


@says("(r.) hands over(?: to (r.))?")
def hand_over(scene: Scene, leader: str, to: str | None) -> Lines:
    scene.group.up[leader].raft.transfer_leadership(to)
    return None


# ------------------------------------------------------------------ processes and disks
@says("(r.) joins")
def join(scene: Scene, name: str) -> Lines:
    scene.group.join(name)
    return None


@says("(stop|power cut) WHO")
def stop(scene: Scene, how: str, who: str) -> Lines:
    for name in who.split():
        scene.group.stop(name, power=how != "stop")
    return None


@says("start WHO")
def start(scene: Scene, who: str) -> Lines:
    for name in who.split():
        scene.group.start(name)
    return None


@says("empty (r.)")
def empty(scene: Scene, name: str) -> Lines:
    scene.group.lose_disk(name)
    return None


@says("(r.) comes back empty")
def begin_empty(scene: Scene, name: str) -> Lines:
    scene.group.begin_empty(name)
    return None


@says("the disks? of WHO (hangs?|works?)")
def disk(scene: Scene, who: str, how: str) -> Lines:
    for name in who.split():
        scene.group.up[name].disk_stalls = how.startswith("hang")
    return None


@says(r"damage entry (\d+) of WHO")
def damage(scene: Scene, index: str, who: str) -> Lines:
    for name in who.split():
        file, at = scene.group.place_of(name, int(index))
        scene.group.machines[name].disk.flip(file, at)
    return None


@says("tear the log of (r.)")
def tear(scene: Scene, name: str) -> Lines:
    disk = scene.group.machines[name].disk
    newest = max(file for file in disk.names() if file.endswith(".log"))
    disk.cut_off(newest, disk.size_of(newest) - 3)
    return None


@says("WHO reads? (?:its log|their logs)")
def read(scene: Scene, who: str) -> Lines:
    for name in who.split():
        journal = scene.group.up[name].journal
        at = journal.first_index
        while at <= journal.durable_index:
            at, _ = journal.verify(at, 1 << 20)
    return None


@says(r"(r.) mends its log(?:, (\d+) rounds)?")
def mend(scene: Scene, name: str, rounds: str | None) -> Lines:
    for _ in range(int(rounds or 1)):
        scene.group.mend(name)
    return None


@says("(r.) ends for a copy")
def end_for_a_copy(scene: Scene, name: str) -> Lines:
    scene.group.end_for_a_copy(name, "a late message says that it is too far behind")
    return None


@says("(r.) takes a snapshot")
def snapshot(scene: Scene, name: str) -> Lines:
    scene.group.snapshot(name)
    return None


# ------------------------------------------------------------------ what is shown
@says("show(?: WHO)?")
def show(scene: Scene, who: str | None) -> Lines:
    for name in who.split() if who else scene.group.names:
        yield f"{name}: {_state(scene.group.up[name]) if name in scene.group.up else 'stopped'}"


def _state(one: Replica) -> str:
    journal, raft = one.journal, one.raft
    role = {LEADER: "leader", CANDIDATE: "candidate"}.get(raft._core.role, "follower")
    if raft.rejoining:
        role = "rejoining"
    elif one.name not in raft.members.voters:
        role = "learner"
    end = f"log ends with {journal.last_index} of term {journal.last_term}"
    state = f"{role:9} term {one.term()}  voted {journal.getVotedForNodeId() or '--'}  {end}"
    state += f"  committed {one.commit_index()}"
    if one.commit_index() - raft.applied_index > 9:
        state += "  much to apply"
    return f"{state}  damaged {sorted(journal.damaged)}" if journal.damaged else state


@says("show (logs|members|values)(?: of WHO)?")
def compare(scene: Scene, what: str, who: str | None) -> Lines:
    of = {"logs": _log, "members": _members, "values": _values}[what]
    names = [name for name in (who.split() if who else scene.group.names) if name in scene.group.up]
    told = {name: of(scene.group.up[name]) for name in names}
    for text in dict.fromkeys(told.values()):
        yield f"{' '.join(name for name in names if told[name] == text)}: {text}"


def _log(one: Replica) -> str:
    journal = one.journal
    entries = range(max(2, journal.first_index), journal.last_index + 1)

    def text(index: int) -> str:
        command = journal.read(index)
        return "members" if command[0] == MEMBERSHIP else command[1:].decode() or "-"

    terms = groupby(entries, key=journal.term_at)
    return "; ".join(f"term {term}: {' '.join(map(text, of_term))}" for term, of_term in terms) or "empty"


def _members(one: Replica) -> str:
    members = one.raft.members
    learners = f", learners {' '.join(members.learners)}" if members.learners else ""
    return f"voters {' '.join(members.voters)}{learners}" if members.voters else "nobody"


def _values(one: Replica) -> str:
    values = [value.decode() for value in one.applied]
    return " ".join(values) if len(values) < 9 else f"{len(values)} values, {values[0]} to {values[-1]}"

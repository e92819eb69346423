"""The group's members, and changing them one step at a time.

The caller repeats the same goal, with the same id, to whichever replica leads, until the answer is DONE: so a
change continues whatever happens to a leader or to the caller, and nothing has to remember how far it got.
replication/raft/members.py decides, from the log, which step comes next and what forbids it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from escrowmq.replication.calling.answers import MembersReport, Reply, StepTaken
from escrowmq.replication.errors import ChangeNotYet, ChangeRefused, Closed, DiskFull, Overloaded, Unavailable
from escrowmq.replication.format.membership import CHANGE_ID_MAX, LEARNERS_MAX, Members, in_order
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from escrowmq.replication.raft.members import Act, Goal, Step, in_vain, next_step
from escrowmq.replication.raft.membership_changes import votes_in

#: If a step is not applied within this time, its outcome is unknown to the caller, who asks again anyway.
STEP_WAIT_S: Final = 10.0
#: A leader without a majority gives up within about this time; one with it is answered in a round trip.
CONFIRM_S: Final = 1.0
CONFIRM_EVERY_S: Final = 0.01
#: Maximum number of replicas in one change: seven voters, and their replacements.
IDS_MAX: Final = 16
_ID_MAX: Final = 1_000_000


class MemberChanges:
    """The group's members at one replica. Thread-safe; ``change`` blocks until there is an answer."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running

    def members(self) -> MembersReport:
        """The members according to this replica's log. Any replica. Raises Unavailable."""
        try:
            return self._running.driver.call(lambda: report_of(self._running))
        except (Closed, TimeoutError) as error:
            raise Unavailable(f"{self._running.setup} does not answer", 1.0) from error

    def told(self, epoch: int, members: Sequence[int]) -> None:
        """See ``RunningReplica.told``."""
        self._running.told(epoch, [str(rid) for rid in members])

    def change(self, change_id: str, add: Sequence[int], remove: Sequence[int], version: int) -> Reply:
        """One step towards a group in which ``add`` are voters and ``remove`` are not members; leader only.

        ``version``: of the configuration that the caller has seen. If another one is in force, nothing is
        done: otherwise a late copy of the question could remove a voter in addition to the one that was
        removed instead.

        ``("ok", StepTaken)``; ``("not_yet", text)`` if the rules do not allow the step now: ask again;
        ``("refused", text)`` if they never will; the rest as for requests.
        """
        problem = _problem(change_id, add, remove)
        if problem:
            return "malformed", problem
        goal = Goal(change_id, in_order([str(rid) for rid in add]), in_order([str(rid) for rid in remove]))
        answer: Future[Reply] = Future()
        try:
            self._running.driver.submit(lambda: self._take_step(goal, version, answer))
        except Overloaded as error:
            return "overloaded", error.retry_after_s
        except Closed:
            return NOT_RUNNING
        try:
            return answer.result(STEP_WAIT_S)
        except FutureTimeout:
            return ("unknown",)

    def never_voted(self, rid: int) -> Reply:
        """``("ok", whether)`` replica ``rid`` is a voter in no configuration of this log; only from a leader
        that a majority has answered since the question (raft/membership_changes.py). Blocks for at most a
        second."""
        running, node = self._running, self._running.node

        def answer() -> bool | None:
            if not node.leads_since(check):
                return None
            return not votes_in(str(rid), running.journal.members.since(0))

        try:
            check = running.driver.call(node.check_lead)
            deadline = time.monotonic() + CONFIRM_S
            while node.is_leader:
                never = running.driver.call(answer)
                if never is not None:
                    return "ok", never
                if time.monotonic() >= deadline:
                    break
                time.sleep(CONFIRM_EVERY_S)
        except Closed:
            return NOT_RUNNING
        except TimeoutError as error:
            raise Unavailable(f"{running.setup} does not answer", 1.0) from error
        return running.replica.not_leader()

    def hand_over(self, to: int) -> Reply:
        """Make replica ``to`` the leader, as soon as it holds the whole log; leader only. Does nothing while
        a handover is under way. Raises Unavailable."""

        def begin() -> Reply:
            node = self._running.node
            if not node.ready:
                return self._running.replica.not_leader()
            if str(to) not in node.members.voters:
                voters = ", ".join(node.members.voters)
                return "refused", f"replica {to} is not a voter, so it cannot lead; the voters are {voters}"
            node.transfer_leadership(str(to))
            return "ok", None

        try:
            return self._running.driver.call(begin)
        except Closed:
            return NOT_RUNNING
        except TimeoutError as error:
            raise Unavailable(f"{self._running.setup} does not answer", 1.0) from error

    # -------------------------------------------------------------- in the driver's thread
    def _take_step(self, goal: Goal, version: int, answer: Future[Reply]) -> None:
        running = self._running
        node = running.node
        if not node.ready:
            answer.set_result(running.replica.not_leader())
            return
        if version != node.members.version:
            text = f"the members are those of version {node.members.version}, not {version}: look again"
            answer.set_result(("not_yet", text))
            return
        step = next_step(node.members, goal, node.id, node.caught_up)
        problem = in_vain(node.members, goal) or _too_high(node.members, step)
        if step.act is Act.DONE and not node.members_applied:
            step = Step(Act.WAIT)
        if problem:
            answer.set_result(("refused", problem))
        elif step.act in (Act.WAIT, Act.DONE, Act.HAND_OVER):
            if step.act is Act.HAND_OVER:
                node.transfer_leadership()
            answer.set_result(("ok", _taken(running, step)))
        else:
            node.change_members(
                step, goal.id, lambda result, outcome: self._ended(step, answer, result, outcome)
            )

    def _ended(self, step: Step, answer: Future[Reply], result: Any, outcome: bool | None) -> None:
        if outcome:
            reply: Reply = ("ok", _taken(self._running, step))
        elif outcome is None:
            reply = ("unknown",)
        elif isinstance(result, ChangeNotYet):
            reply = ("not_yet", str(result))
        elif isinstance(result, ChangeRefused):
            reply = ("refused", str(result))
        elif isinstance(result, Overloaded):
            reply = ("overloaded", result.retry_after_s)
        elif isinstance(result, DiskFull):
            reply = ("disk_full", 1.0)
        else:
            reply = self._running.replica.not_leader()
        answer.set_result(reply)


def report_of(running: RunningReplica) -> MembersReport:
    """The members as ``node`` knows them. In the driver's thread."""
    node = running.node
    members = node.members
    return MembersReport(
        version=members.version,
        voters=[int(replica) for replica in members.voters],
        learners=[int(replica) for replica in members.learners],
        highest=members.highest,
        change_id=members.change_id,
        applied=node.members_applied,
    )


def _taken(running: RunningReplica, step: Step) -> StepTaken:
    return StepTaken(step.act.name, int(step.replica or -1), report_of(running))


def _problem(change_id: str, add: Sequence[int], remove: Sequence[int]) -> str:
    """What is wrong with the question; "": nothing. Its values are written into the log unchanged."""
    if type(change_id) is not str or not change_id.isprintable() or not 0 < len(change_id) <= CHANGE_ID_MAX:
        return f"a change has an id of 1 to {CHANGE_ID_MAX} printable characters"
    ids = [*add, *remove]
    if len(ids) > IDS_MAX or any(type(rid) is not int or not 0 <= rid <= _ID_MAX for rid in ids):
        return f"a change names at most {IDS_MAX} replicas, by numbers from 0 to {_ID_MAX}"
    if len(set(ids)) < len(ids):
        return "a change names each replica only once"
    return ""


def _too_high(members: Members, step: Step) -> str:
    """A number that is far too high would make all lower ones unusable for good."""
    most = members.highest + LEARNERS_MAX
    if step.act is not Act.ADD or int(step.replica) <= most:
        return ""
    return f"{step}: the next replica has number {members.highest + 1}"

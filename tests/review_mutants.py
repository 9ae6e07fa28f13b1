"""Each finding of the review of the runtime (N1 to N25, the security list, and later ones): its rule, and its test.

    python -m tests.review_mutants [N5 N18 ...]

takes each rule away in a copy of the package, runs the test that is named beside it there, and prints whether the test
noticed. `test_review_mutants` sees that each finding has a test, and that each rule and each test is there: a rule that
is written otherwise is to be written here anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "antecede"


class Mutant(NamedTuple):
    """A rule taken away: in this file, these words become those."""

    finding: str
    what: str
    """What goes wrong without the rule."""
    file: str
    rule: str
    instead: str
    test: str


MUTANTS = [
    Mutant(
        "N1", "the words of a peer decide", "net/peers/reception.py",
        "if isinstance(error, Rejected) and error.code is Code.GONE and dialled:",
        'if isinstance(error, Rejected) and "no member" in error.reason:',
        "test_no_sentence_of_a_peer_decides_anything",
    ),
    Mutant(
        "N1", "the certificate of another is believed", "net/peers/handshake.py",
        "if connection.proved not in (None, name):", "if False:",
        "test_a_word_of_removal_counts_only_from_the_peer_itself",
    ),
    Mutant(
        "N2", "what nests without end is not caught", "net/peers/session.py",
        "except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:",
        "except (msgspec.MsgspecError, UnicodeDecodeError) as error:",
        "test_what_nests_without_end_is_refused",
    ),
    Mutant(
        "N2", "a frame that nests without end stops the node", "wire/bundles.py",
        "except (msgspec.MsgspecError, RecursionError) as error:", "except msgspec.MsgspecError as error:",
        "test_a_bundle_that_cannot_be_is_refused_without_more_ado",
    ),
    Mutant(
        "N3", "what was refused is acknowledged", "process/core.py",
        "self.refuse(source, error)\n                    if self.rules > 3:",
        "self.refuse(source, error)\n                    if False:",
        "test_what_is_refused_is_not_acknowledged_even_where_a_gap_is_told_at_once",
    ),
    Mutant(
        "N3", "a node goes on after an exception", "net/driver.py",
        'self.crash(error, f"in an input {type(given).__name__}")', "raise",
        "test_an_exception_in_any_kind_of_input_stops_the_node_and_it_comes_back",
    ),
    Mutant(
        "N4", "the event loop's handler hears of it, and nobody else", "net/driver.py",
        'self.stop(error, "at the end of a turn")', "raise",
        "test_an_exception_anywhere_stops_the_node_and_it_comes_back",
    ),
    Mutant(
        "N5", "the settings of now decide a replay", "process/snapshots.py",
        'core.send_under(typed(snapshot["sending"], wire.Limits),', "core.send_under(limits,",
        "test_a_restart_with_other_limits_loses_and_repeats_nothing",
    ),
    Mutant(
        "N6", "iteration ends quietly", "net/node.py",
        "        except Closed:\n            if self._phase in",
        "        except Exception:\n            if self._phase in",
        "test_a_removed_node_does_not_end_quietly",
    ),
    Mutant(
        "N7", "a close that is cancelled stops half way", "net/lifecycle.py",
        "left = await asyncio.shield(self._closes)", "left = await self._closes",
        "test_a_close_that_is_cancelled_anywhere_closes",
    ),
    Mutant(
        "N8", "a change counts as told before it was", "net/views.py",
        "told=self.changed is None)", "told=True)",
        "test_a_change_is_told_until_the_callback_has_returned",
    ),
    Mutant(
        "N9", "a snapshot forgets who was refused", "process/snapshots.py",
        'in typed(snapshot["refused"], list[tuple[int, str, str, str]])', "in []",
        "test_what_was_refused_is_not_acknowledged_and_the_peer_is_refused_for_good",
    ),
    Mutant(
        "N10", "a name is not on the disk", "trace/layout.py",
        "        sync_directory(path.parent)", "        pass",
        "test_a_file_that_is_shown_has_its_name_on_the_disk",
    ),
    Mutant(
        "N11", "fdatasync is not everywhere", "disk.py",
        'getattr(os, "fdatasync", os.fsync)(descriptor)', "os.fdatasync(descriptor)",
        "test_syncs_where_there_is_no_fdatasync",
    ),
    Mutant(
        "N11", "fsync is not enough everywhere", "disk.py",
        'full = getattr(fcntl, "F_FULLFSYNC", None)', "full = None",
        "test_syncs_fully_where_that_is_another_thing",
    ),
    Mutant(
        "N12", "a receive by sender waits for ever", "net/node.py",
        "if not host.core.machine.selective:", "if False:",
        "test_who_cannot_select_says_so_at_once",
    ),
    Mutant(
        "N13", "a number is taken for so many zeros", "net/arguments.py",
        "return bytes(memoryview(payload))", "return bytes(payload)",
        "test_a_payload_is_bytes",
    ),
    Mutant(
        "N14", "labels stay for ever", "protocols/history.py",
        "if label in self._contexts and not self._contexts[label].H:", "if False:",
        "test_a_label_of_a_peer_that_needs_nothing_any_more_is_forgotten",
    ),
    Mutant(
        "N15", "an earlier incarnation is ignored without a word", "net/peers/handshake.py",
        "if hello.hail.epoch < last:", "if False:",
        "test_a_peer_in_an_earlier_incarnation_is_told_so",
    ),
    Mutant(
        "N16", "an older journal is refused", "process/upgrade.py",
        "if version != OLDEST:", "if True:",
        "test_an_older_journal_opens_as_it_was",
    ),
    Mutant(
        "N16", "a clean stop leaves inputs to replay", "net/driver.py",
        "if self._journaled and self.failure is None:", "if False:",
        "test_a_closed_node_leaves_a_snapshot_and_nothing_to_replay",
    ),
    Mutant(
        "N17", "a message that is refused uses up its number", "process/core.py",
        "check_packets(self.machine, self.sending, seats, payload, label, context, after)", "pass",
        "test_a_message_that_is_refused_for_its_stamp_has_used_up_no_number",
    ),
    Mutant(
        "N18", "limits are not compared", "net/peers/session.py",
        "    check_terms(expected.terms, found.terms, found.name, expected.name)", "    pass",
        "test_nodes_of_other_limits_refuse_each_other_once",
    ),
    Mutant(
        "N19", "a join that was given up leaves a ghost", "net/peers/joining.py",
        "host.happen(Withdraw((join.name,)))", "pass",
        "test_a_change_that_has_begun_is_called_off_if_the_join_is",
    ),
    Mutant(
        "N20", "what may have been handed over comes as new", "process/restarts.py",
        "        core.repeats |= dict.fromkeys(list_deliverable(core))\n", "",
        "test_all_that_was_handed_over_comes_again_first_and_in_its_order",
    ),
    Mutant(
        "N20", "what is held comes as new", "process/restarts.py",
        "{message.id: None for message in held if core.me in message.to}", "{}",
        "test_what_is_held_may_have_been_handed_over_before_what_it_waited_for_was_durable",
    ),
    Mutant(
        "N21", "a lost end of the log is not noticed", "process/journal.py",
        "if mark is not None and mark.position > self.position:", "if False:",
        "test_no_damage_of_the_log_opens_an_older_state",
    ),
    Mutant(
        "N21", "a lost database begins as new", "net/storage/journal.py",
        "if not os.path.exists(path) and left:", "if False:",
        "test_a_journal_that_lost_its_database_does_not_begin_as_new",
    ),
    Mutant(
        "N22", "a node is entered again", "net/lifecycle.py",
        'if self._phase != "new":\n            raise Closed(self.name, "was started',
        'if False:\n            raise Closed(self.name, "was started',
        "test_a_node_lives_once",
    ),
    Mutant(
        "N22", "another event loop is not noticed", "net/lifecycle.py",
        "if get_ident() != self._ident or not self._loop.is_running():\n            raise",
        "if False:\n            raise",
        "test_a_node_is_used_in_the_loop_that_started_it",
    ),
    Mutant(
        "N23", "strangers keep a peer out", "net/peers/reception.py",
        "            longest.close()", "            connection.close()",
        "test_idle_strangers_do_not_keep_a_known_peer_out",
    ),
    Mutant(
        "N24", "a node with another's certificate starts", "net/lifecycle.py",
        "self._transport.check_name(self.name)", "pass",
        "test_a_node_that_could_not_prove_its_name_does_not_start",
    ),
    Mutant(
        "N24", "a port in use is no error of the system", "net/transports/tcp.py",
        'raise CannotListen("node", f"{host}:{port}", reason) from None',
        'raise BadParameter("node", reason) from None',
        "test_an_address_that_is_taken_is_told_as_the_system_tells_it",
    ),
    Mutant(
        "N25", "close says nothing of what is left", "net/lifecycle.py",
        "left = {core.view.name(peer): out.pending for peer, out in core.out.items() if out.pending}", "left = {}",
        "test_close_tells_what_was_not_acknowledged",
    ),
    Mutant(
        "N25", "nobody says whom a send waits for", "net/pressure.py",
        "telling = loop.call_later(self._settings.dead_s, self._alarm, full)",
        "telling = loop.call_later(1e6, self._alarm, full)",
        "test_a_member_that_is_down_and_stops_send_is_seen",
    ),
    Mutant(
        "security", "files of a journal are open to all", "net/storage/journal.py",
        "os.chmod(file, 0o600)", "pass",
        "test_files_are_their_owners_alone",
    ),
    Mutant(
        "security", "any certificate joins", "net/peers/joining.py",
        "        if not connection.local:\n", "        if False:\n",
        "test_a_certificate_is_not_enough_beyond_this_machine",
    ),
    Mutant(
        "security", "a rule that says no is not heard", "net/peers/joining.py",
        "if allowed is not True:", "if False:",
        "test_a_rule_decides_who_may_join",
    ),
    Mutant(
        "security", "queues count messages alone", "process/room.py",
        "out.pending >= bounds.queue or out.size >= bounds.queue_bytes or", "out.pending >= bounds.queue or",
        "test_send_waits_for_bytes_as_it_does_for_messages",
    ),
    Mutant(
        "security", "a peer that goes on regardless fills our memory", "net/peers/peer.py",
        "if held > self._most or size > self._most_bytes:", "if False:",
        "test_a_peer_that_goes_on_regardless_is_cut_off_before_it_fills_our_memory",
    ),
    Mutant(
        "security", "a small bundle becomes any number of packets", "wire/bundles.py",
        "    if count > PACKETS:", "    if False:",
        "test_a_bundle_becomes_no_more_memory_than_is_stated",
    ),
    Mutant(
        "security", "a small bundle has any number of runs", "wire/bundles.py",
        "_DECODER = msgspec.msgpack.Decoder(Annotated[list[Run], Meta(max_length=PACKETS)])",
        "_DECODER = msgspec.msgpack.Decoder(list[Run])",
        "test_a_bundle_becomes_no_more_memory_than_is_stated",
    ),
    Mutant(
        "security", "anyone reads metrics", "net/serve/health.py",
        "if not is_loopback(parse_address(address)[0]) and not open_to_others:", "if False:",
        "test_others_read_metrics_only_if_the_operator_says_so",
    ),
    Mutant(
        "later", "whoever obeys is cut off", "net/peers/peer.py",
        "self._most = 4 * max(settings.held, queue)", "self._most = 4 * settings.held",
        "test_a_peer_with_a_longer_queue_is_not_refused",
    ),
    Mutant(
        "later", "a peer asks for all our memory", "net/peers/terms.py",
        "if stated is not None and stated > most:", "if False:",
        "test_a_peer_on_other_terms_is_refused",
    ),
    Mutant(
        "later", "a leave stops all while a member is down", "process/views/membership.py",
        "return not down or (progress is not None and name in (*progress.join, *progress.leave))", "return True",
        "test_a_leave_waits_for_a_member_that_is_down_and_sends_go_on",
    ),
    Mutant(
        "later", "whoever follows a change names its leader", "process/views/membership.py",
        "awaited = self._among(self._taking_part(plan), down) or awaited", "pass",
        "test_whoever_follows_a_change_names_the_member_that_is_down_and_not_its_leader",
    ),
    Mutant(
        "later", "the last of those that leave waits for ever", "net/views.py",
        "if (error := membership.judge(plan)) is not None:", "if (error := None) is not None:",
        "test_of_all_that_leave_at_once_the_last_is_told_that_it_cannot",
    ),
    Mutant(
        "later", "a callback that was cancelled ends the task that receives", "net/views.py",
        "        if is_asked_to_end(error):\n", "        if isinstance(error, asyncio.CancelledError):\n",
        "test_a_callback_that_raises_stops_the_node",
    ),
    Mutant(
        "later", "a task is cancelled, and nobody does its work", "net/failure.py",
        "elif task in self._dismissed or self.failure is not None:", "elif True:",
        "test_a_task_that_somebody_else_cancels_stops_the_node",
    ),
    Mutant(
        "later", "a loop that ended keeps the journal of its node locked", "net/lifecycle.py",
        "await outlast(self._give_back())", "pass",
        "test_a_node_that_nobody_closed_ends_with_its_loop",
    ),
    Mutant(
        "later", "a program that goes elsewhere takes its journal along", "net/storage/journal.py",
        "Database(os.path.abspath(path), place, sync)", "Database(os.fspath(path), place, sync)",
        "test_a_journal_stays_where_it_was_opened",
    ),
    Mutant(
        "later", "a fork sends, and nothing leaves", "net/lifecycle.py",
        "        node._ident = 0\n", "        pass\n",
        "test_a_fork_has_no_node_to_send_with",
    ),
    Mutant(
        "later", "an address with a zero in it stops whoever dials it", "net/transports/tcp.py",
        " or not host.isprintable()", "",
        "test_one_that_cannot_join_is_told_why_and_harms_nobody",
    ),
    Mutant(
        "later", "a log that is broken keeps a node up", "net/failure.py",
        "            finally:\n                # Whatever",
        "            except ZeroDivisionError:\n                # Whatever",
        "test_a_log_that_is_broken_keeps_no_node_up",
    ),
    Mutant(
        "later", "a callback waits for itself", "net/views.py",
        'self._check_outside_callback("leave")', "pass",
        "test_a_callback_that_waits_for_itself_is_told_that_it_cannot",
    ),
    Mutant(
        "later", "large payloads hold up all others", "net/node.py",
        "self._turns -= 1 + len(payload) // YIELD_BYTES", "self._turns -= 1",
        "test_large_payloads_give_others_their_turn_sooner",
    ),
    Mutant(
        "later", "two threads send at once", "net/node.py",
        "if get_ident() != self._ident:", "if False:",
        "test_a_node_is_used_in_the_thread_that_started_it",
    ),
    Mutant(
        "later", "an older copy of a journal is taken for the newest", "process/restarts.py",
        "core.epoch = max(core.epoch + 1, restart.epoch)", "core.epoch = core.epoch + 1",
        "test_an_older_copy_of_a_journal_is_refused_however_much_was_sent_since",
    ),
    Mutant(
        "later", "other groups are ignored", "process/journal.py",
        "for what, found, expected in facts:", "for what, found, expected in facts[:4]:",
        "test_the_journal_of_another_node_is_refused",
    ),
    Mutant(
        "later", "one that joins has its sponsor refused", "net/peers/joining.py",
        "if (odd := check_joiner(_joiner(host, join))) is not None:", "if odd := None:",
        "test_one_that_cannot_join_is_told_why_and_harms_nobody",
    ),
    Mutant(
        "later", "a span fails, and a message is lost", "net/node.py",
        'self._crash(error, "in the span of a message that was handed over")', "raise",
        "test_a_span_that_fails_after_the_fact_stops_the_node",
    ),
    Mutant(
        "later", "a file is written by two nodes", "net/observe/recorder.py",
        "await outlast(asyncio.to_thread(self.write, events))", "await asyncio.to_thread(self.write, events)",
        "test_a_node_that_fails_while_it_records_is_closed_once_the_file_is_there",
    ),
    Mutant(
        "later", "a timer fails, and nobody hears of it", "net/pressure.py",
        'self._host.stop(error, "when it told for whom a send waits")', "raise",
        "test_a_log_that_is_broken_leaves_no_send_waiting_for_a_peer_of_which_it_should_have_told",
    ),
]  # fmt: skip


def find_test(name: str) -> str:
    """The test of this name, as pytest takes it: wherever it is."""
    [file] = [
        file
        for file in sorted(HERE.glob("test_*.py"))
        if re.search(rf"^def {name}\(", file.read_text(), re.M)
    ]
    return f"{file}::{name}"


def try_mutant(mutant: Mutant) -> str:
    """What the test says."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "antecede"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / mutant.file
        file.write_text(file.read_text().replace(mutant.rule, mutant.instead))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, find_test(mutant.test)],
            env={**os.environ, "PYTHONPATH": directory},
            cwd=HERE.parent,
            capture_output=True,
            check=False,
        )
        # 1: tests failed. Anything else is no answer: nothing collected, or an error of pytest.
        return "noticed" if done.returncode == 1 else "NOT NOTICED"


def main(wanted: list[str]) -> int:
    missed = 0
    for mutant in MUTANTS:
        if not wanted or mutant.finding in wanted:
            said = try_mutant(mutant)
            missed += said != "noticed"
            print(f"{mutant.finding}: {mutant.what}: {said} by {mutant.test}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))

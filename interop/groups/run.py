"""Groups of mixed members: ours, Java's, librdkafka's and franz-go's in one group, on our broker and on Apache Kafka.

They share one topic, hand partitions to each other when one comes or goes, with eager (range) and cooperative-sticky
assignment, and with static names. Each member commits what it has said before it asks for more, so that across all
handovers every record is seen exactly once.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import DEADLINE, ROOT, Failure, Suite, run  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "interop", "java"))
from classpath import SMALL_JVM, classpath  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
FRANZ_GO = "v1.22.3"
PARTITIONS = set(range(8))
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}

suite = Suite("groups", tools=["cargo", "java", "mvn", "go"])


def ours():
    target = os.path.join(suite.place, "..", "member")
    run(["cargo", "build", "--quiet", "--manifest-path", os.path.join(ROOT, "interop", "member", "Cargo.toml"), "--target-dir", target],
        timeout=900)
    return [os.path.join(target, "debug", "tramline-member")]


def java():
    return ["java", *SMALL_JVM, "-cp", classpath(), "org.apache.kafka.tools.VerifiableConsumer"]


def librdkafka():
    place = os.path.join(suite.place, "venv")
    python = os.path.join(place, "bin", "python")
    if not os.path.exists(os.path.join(place, "installed")):
        run([sys.executable, "-m", "venv", place])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "confluent-kafka==2.*"], timeout=600)
        open(os.path.join(place, "installed"), "w", encoding="utf-8").close()
    return [python, os.path.join(HERE, "member.py")]


def franz_go():
    place = os.path.join(suite.place, f"franz-go-{FRANZ_GO}")
    if not os.path.exists(os.path.join(place, "go.sum")):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        run(["go", "mod", "init", "member"], cwd=place)
        run(["go", "get", f"github.com/twmb/franz-go/pkg/kgo@{FRANZ_GO}"], cwd=place, timeout=300)
    shutil.copy(os.path.join(HERE, "member.go"), place)
    run(["go", "build", "-o", "member", "member.go"], cwd=place, timeout=900)
    return [os.path.join(place, "member")]


class Member:
    """A child that is a member, and what it has told so far."""

    def __init__(self, kind, broker, topic, strategy, instance=None):
        command = list(COMMANDS[kind])
        if kind == "java":
            command += ["--bootstrap-server", broker, "--topic", topic, "--group-id", topic, "--reset-policy", "earliest",
                        "--session-timeout", "30000", "--assignment-strategy", JAVA_ASSIGNORS[strategy]]
            command += ["--group-instance-id", instance] if instance else []
        else:
            command += [broker, topic, topic, strategy] + ([instance] if instance else [])
        self.kind, self.owned, self.changes, self.given_up = kind, set(), 0, 0
        self.log = open(os.path.join(suite.place, f"{kind}.log"), "ab")
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.told = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.child.stdout:
            if line.startswith("{"):
                self.told.put(json.loads(line))

    def hear(self, seen):
        """Takes in what it has said; adds the records to `seen`."""
        while not self.told.empty():
            told = self.told.get()
            what = told.get("event") or told["name"].removeprefix("partitions_")
            if what == "records_consumed":
                for part in told["partitions"]:
                    seen.extend((part["partition"], at) for at in range(part["minOffset"], part["maxOffset"] + 1))
            elif what == "records":
                seen.extend((told["partition"], at) for at in range(told["first"], told["last"] + 1))
            elif what in ("assigned", "revoked", "lost"):
                parts = {part["partition"] if isinstance(part, dict) else part for part in told["partitions"]}
                self.owned = self.owned | parts if what == "assigned" else self.owned - parts
                self.changes += bool(parts)
                self.given_up += len(parts) if what != "assigned" else 0

    def stop(self, how=signal.SIGTERM):
        self.child.send_signal(how)
        try:
            self.child.wait(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise Failure(f"{self.kind} does not end") from None


class Group:
    """The members of one group over one topic, and the records they have seen."""

    count = 0

    def __init__(self, broker, strategy):
        Group.count += 1
        self.broker, self.strategy, self.topic = broker, strategy, f"mixed-{os.getpid()}-{Group.count}"
        self.members, self.seen, self.sent = {}, [], 0
        run([suite.arguments.binary, "topic", "create", self.topic, "-p", str(len(PARTITIONS)), "-b", broker])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members.values():
            member.child.kill()
            member.child.wait()

    def join(self, kind, static=False):
        self.members[kind] = Member(kind, self.broker, self.topic, self.strategy, f"name-{kind}" if static else None)

    def leave(self, kind, how=signal.SIGTERM):
        member = self.members.pop(kind)
        member.stop(how)
        until = time.monotonic() + 5
        while time.monotonic() < until and member.told.empty() and how == signal.SIGTERM:
            time.sleep(0.02)
        time.sleep(0.1)
        member.hear(self.seen)
        return member

    def hear(self):
        for kind, member in self.members.items():
            member.hear(self.seen)
            if member.child.poll() is not None:
                raise Failure(f"{kind} ended with {member.child.returncode}, see {member.log.name}")

    def until(self, holds, what):
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            self.hear()
            if holds():
                return
            time.sleep(0.05)
        owned = {kind: sorted(member.owned) for kind, member in self.members.items()}
        raise Failure(f"not within {DEADLINE} s: {what}; owned {owned}; {len(set(self.seen))} of {self.sent} records")

    def shared(self):
        """Waits until everybody has a fair part and nothing is owned twice or by nobody."""
        def holds():
            parts = [member.owned for member in self.members.values()]
            sizes = [len(part) for part in parts]
            return sum(sizes) == len(PARTITIONS) and set().union(*parts) == PARTITIONS and max(sizes) - min(sizes) <= 1
        self.until(holds, "a fair share for " + ", ".join(self.members))

    def feed(self, count=400):
        text = "".join(f"k{n}:record {n}\n" for n in range(count))
        run([suite.arguments.binary, "produce", self.topic, "-k", ":", "-b", self.broker], input=text)
        self.sent += count
        self.until(lambda: len(set(self.seen)) == self.sent, "all records")

    def exactly_once(self):
        self.hear()
        twice = len(self.seen) - len(set(self.seen))
        if twice:
            raise Failure(f"{twice} of {self.sent} records came twice")


def come_and_go(broker, strategy, order):
    """They join one after the other and leave one after the other, with records all the time."""
    def body():
        with Group(broker, strategy) as group:
            for kind in order:
                group.join(kind)
                group.shared()
                group.feed()
            gave = {}
            for kind in order[:-1]:
                gave[kind] = group.leave(kind).given_up
                group.shared()
                group.feed()
            gave[order[-1]] = group.members[order[-1]].given_up
            group.exactly_once()
            # The last to come may have had nothing to give up.
            idle = [kind for kind in order[:-1] if not gave[kind]]
            if idle:
                raise Failure(f"never gave a partition up: {idle}")
            return f"{group.sent} records once each"
    return body


def static(broker, order):
    """Each is killed and comes back under its name: the others notice nothing, and it gets what it had."""
    def body():
        with Group(broker, "cooperative-sticky") as group:
            for kind in order:
                group.join(kind, static=True)
                group.shared()
            group.feed()
            for kind in order:
                before = {other: member.changes for other, member in group.members.items() if other != kind}
                had = group.leave(kind, signal.SIGKILL).owned
                group.join(kind, static=True)
                group.until(lambda: group.members[kind].owned == had, f"{kind} owns {sorted(had)} again")
                group.feed()
                after = {other: member.changes for other, member in group.members.items() if other != kind}
                if before != after:
                    raise Failure(f"the return of {kind} moved partitions of others: {before}, {after}")
            group.exactly_once()
    return body


def broker_dies(order, strategy):
    """The broker is killed three times: nobody's partitions move, and all records come."""
    def body():
        with Group(suite.broker.address, strategy) as group:
            for kind in order:
                group.join(kind)
                group.shared()
            group.feed()
            before = {kind: member.changes for kind, member in group.members.items()}
            for _ in range(3):
                suite.broker.kill()
                suite.broker.start()
                group.feed()
            after = {kind: member.changes for kind, member in group.members.items()}
            if before != after:
                raise Failure(f"a restart moved partitions: {before}, {after}")
            return f"{group.sent} records"
    return body


def transactions():
    """What a transactional producer of Kafka wrote is read without its markers, and the commits end behind the last marker."""
    broker, topic = suite.arguments.kafka, f"transactions-{os.getpid()}"
    run([*COMMANDS["java"][:-1], "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", broker, "--topic", topic,
         "--num-records", "5000", "--record-size", "100", "--throughput", "-1", "--transactional-id", topic,
         "--transaction-duration-ms", "50", "--command-property", "acks=all"])
    said = run([suite.arguments.binary, "consume", topic, "-g", topic, "-e", "-b", broker])
    if len(said.splitlines()) != 5000:
        raise Failure(f"{len(said.splitlines())} of 5000 records")
    said = run([suite.arguments.binary, "group", "describe", topic, "-b", broker, "--json"])
    rows = [json.loads(line) for line in said.splitlines()]
    ends = sum(row["end"] for row in rows)
    if any(row["lag"] for row in rows) or ends <= 5000:
        raise Failure(f"{rows}")
    return f"{ends - 5000} markers passed"


COMMANDS = {"ours": ours(), "java": java(), "librdkafka": librdkafka(), "franz-go": franz_go()}
KINDS = list(COMMANDS)


def main():
    suite.version("members: ours, kafka-clients 4.4.0, confluent-kafka 2, franz-go " + FRANZ_GO)
    brokers = {"our broker": suite.start().address}
    if suite.arguments.kafka:
        brokers["Apache Kafka"] = suite.arguments.kafka
    if suite.smoke:
        suite.check("cooperative-sticky, ours first, on our broker", come_and_go(brokers["our broker"], "cooperative-sticky", KINDS))
        suite.finish()
    for name, broker in brokers.items():
        for strategy in JAVA_ASSIGNORS:
            for turn in range(len(KINDS)):
                order = KINDS[turn:] + KINDS[:turn]
                suite.check(f"{strategy}, {order[0]} first, on {name}", come_and_go(broker, strategy, order))
        suite.check(f"static members, on {name}", static(broker, KINDS))
    if suite.arguments.kafka:
        suite.check("records of transactions, on Apache Kafka", transactions)
    for strategy in JAVA_ASSIGNORS:
        # Without franz-go, which ends its session on a refused connection; its own runs with kills have a relay between.
        suite.check(f"{strategy}, over SIGKILLs of our broker", broker_dies(KINDS[:-1], strategy))
    suite.finish()


main()

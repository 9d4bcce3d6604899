"""The tools of Apache Kafka, from Maven, against `tramline serve`."""

import json
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from classpath import SMALL_JVM, classpath  # noqa: E402
from common import DEADLINE, Failure, Suite, run  # noqa: E402

TOOLS = "org.apache.kafka.tools"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
suite = Suite("java", tools=["java", "mvn"])


CLASSPATH = classpath()
address = suite.start().address
version = re.search(r"kafka-tools-([\d.]+)\.jar", CLASSPATH).group(1)
suite.version(f"kafka-tools {version}")


def command(tool, *arguments):
    return ["java", *SMALL_JVM, "-cp", CLASSPATH, f"{TOOLS}.{tool}", *map(str, arguments)]


def java(tool, *arguments, **more):
    return run(command(tool, *arguments), **more)


def tool(name, *arguments, **more):
    return java(name, "--bootstrap-server", address, *arguments, **more)


def expect(holds, text, said=""):
    if not holds:
        raise Failure(f"{text}: {said[-900:]!r}" if said else text)


def create(topic, partitions=1):
    said = tool("TopicCommand", "--create", "--topic", topic, "--partitions", partitions)
    expect(f"Created topic {topic}." in said, "not created", said)


def events(said):
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def produce(topic, count, *more):
    said = tool("VerifiableProducer", "--topic", topic, "--max-messages", count, "--throughput", -1, "--acks", -1, *more)
    counted = [event for event in events(said) if event["name"] == "tool_data"][-1]
    expect(counted["sent"] == counted["acked"] == count, "not all acknowledged", said)


# Without keys a short run may leave a partition empty, and a group commits nothing for that one.
EVERYWHERE = ("--repeating-keys", 100)


def offsets(topic, *more):
    said = tool("GetOffsetShell", "--topic", topic, *more)
    return {int(n): int(at) for name, n, at in (line.split(":") for line in said.split()) if name == topic}


def consume(topic, group, count, *more):
    said = tool("VerifiableConsumer", "--topic", topic, "--group-id", group, "--max-messages", count,
                "--reset-policy", "earliest", *more)
    counted = sum(event["count"] for event in events(said) if event["name"] == "records_consumed")
    commits = [event for event in events(said) if event["name"] == "offsets_committed"]
    expect(counted == count, f"{counted} of {count} records", said)
    expect(all(event["success"] for event in commits), "a commit failed", said)


def api_versions():
    said = tool("BrokerApiVersionsCommand")
    known = re.findall(r"^\s*(\w+)\((\d+)\): (?!UNSUPPORTED)", said, re.MULTILINE)
    expect(len(known) >= 20, f"{len(known)} keys are served", said)
    return f"{len(known)} keys"


def topics():
    create("made", 3)
    said = tool("TopicCommand", "--list")
    expect("made" in said.split(), "not listed", said)
    said = tool("TopicCommand", "--describe", "--topic", "made")
    expect("PartitionCount: 3" in said and "ReplicationFactor: 1" in said, "not described", said)
    tool("TopicCommand", "--alter", "--topic", "made", "--partitions", 5)
    said = tool("TopicCommand", "--describe", "--topic", "made")
    expect("PartitionCount: 5" in said and "Partition: 4" in said, "not grown", said)
    tool("TopicCommand", "--delete", "--topic", "made")
    said = tool("TopicCommand", "--list")
    expect("made" not in said.split(), "still listed", said)


def topic_with_configs():
    said = tool("TopicCommand", "--create", "--topic", "configured", "--config", "retention.ms=60000",
                "--config", "cleanup.policy=compact")
    expect("Created topic configured." in said, "not created", said)
    said = tool("TopicCommand", "--describe", "--topic", "configured")
    expect("retention.ms=60000" in said and "cleanup.policy=compact" in said, "the settings are not shown", said)


def wrong_topics():
    for arguments, error in [
        (["--create", "--topic", "a b"], "InvalidTopicException"),
        (["--create", "--topic", "x", "--replication-factor", "2"], "InvalidReplicationFactorException"),
        (["--create", "--topic", "x", "--partitions", "0"], ""),
        (["--delete", "--topic", "never-was"], ""),
        (["--create", "--topic", "x", "--config", "no.such.key=1"], "InvalidConfigurationException"),
    ]:
        done = subprocess.run(command("TopicCommand", "--bootstrap-server", address, *arguments),
                              capture_output=True, text=True, timeout=DEADLINE)
        said = done.stdout + done.stderr
        expect(done.returncode == 1 and error in said, f"{arguments}", said)


def verifiable():
    create("verifiable", 4)
    produce("verifiable", 20_000, *EVERYWHERE)
    expect(sum(offsets("verifiable").values()) == 20_000, "the ends do not add up")
    consume("verifiable", "verifiable", 20_000)


def verifiable_cooperative():
    consume("verifiable", "cooperative", 20_000, "--assignment-strategy", COOPERATIVE, "--group-instance-id", "one")


def lines_until(process, name, count=1):
    """Reads a verifiable tool's events until `count` of `name` were seen; all that was read."""
    seen, until = [], time.monotonic() + DEADLINE
    while time.monotonic() < until and sum(event["name"] == name for event in seen) < count:
        line = process.stdout.readline()
        if not line:
            break
        seen.extend(events(line))
    expect(sum(event["name"] == name for event in seen) >= count, f"no {name}", str(seen))
    return seen


def two_members_and_a_kill():
    """Two members share four partitions; the broker dies between two rounds of records, and they go on."""
    create("pair", 4)
    arguments = ["--bootstrap-server", address, "--topic", "pair", "--group-id", "pair", "--reset-policy", "earliest",
                 "--assignment-strategy", COOPERATIVE, "--session-timeout", "10000"]
    members = []
    try:
        for _ in range(2):
            members.append(subprocess.Popen(command("VerifiableConsumer", *arguments), stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, text=True))
            lines_until(members[-1], "partitions_assigned")
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            said = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "pair", "--members")
            if re.findall(r"(\d+)\s*$", said, re.MULTILINE).count("2") == 2:
                break
        expect(re.findall(r"(\d+)\s*$", said, re.MULTILINE).count("2") == 2, "not shared evenly", said)
        produce("pair", 4_000, *EVERYWHERE)
        suite.broker.kill()
        suite.broker.start()
        produce("pair", 4_000, *EVERYWHERE)
        until, lag = time.monotonic() + DEADLINE, None
        while time.monotonic() < until and lag != 0:
            said = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "pair")
            rows = [line.split() for line in said.splitlines() if line.startswith("pair")]
            lag = sum(int(row[5]) for row in rows) if len(rows) == 4 and all(row[5] != "-" for row in rows) else None
        expect(lag == 0, f"lag {lag}", said)
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        said = [event for member in members for event in events(member.communicate(timeout=DEADLINE)[0])]
    counted = sum(event["count"] for event in said if event["name"] == "records_consumed")
    expect(counted == 8_000, f"{counted} of 8000 records were consumed")


def groups():
    create("grouped", 2)
    produce("grouped", 1_000, *EVERYWHERE)
    consume("grouped", "listed", 1_000)
    said = tool("consumer.group.ConsumerGroupCommand", "--list", "--state")
    expect(re.search(r"^listed\s+Empty", said, re.MULTILINE), "not listed as empty", said)
    said = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "listed", "--state")
    expect("Empty" in said, "not described", said)
    said = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "listed")
    ends = [line.split()[3:6] for line in said.splitlines() if line.startswith("listed")]
    expect(len(ends) == 2 and all(row[0] == row[1] and row[2] == "0" for row in ends), "lag", said)
    tool("consumer.group.ConsumerGroupCommand", "--group", "listed", "--topic", "grouped", "--reset-offsets", "--to-earliest", "--execute")
    said = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", "listed")
    ends = [line.split()[3] for line in said.splitlines() if line.startswith("listed")]
    expect(ends == ["0", "0"], "not reset", said)
    said = tool("consumer.group.ConsumerGroupCommand", "--group", "listed", "--topic", "grouped:0", "--reset-offsets",
                "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    expect("0" in said, "not reset by time", said)


def group_offsets_deleted():
    said = tool("consumer.group.ConsumerGroupCommand", "--delete-offsets", "--group", "listed", "--topic", "grouped")
    expect("Successful" in said, "not deleted", said)


def group_deleted():
    said = tool("consumer.group.ConsumerGroupCommand", "--delete", "--group", "listed")
    expect("was successful" in said, "not deleted", said)
    said = tool("consumer.group.ConsumerGroupCommand", "--list")
    expect("listed" not in said.split(), "still listed", said)


def all_groups():
    said = tool("GroupsCommand", "--list")
    expect("GROUP" in said and "verifiable" in said, "not listed", said)


def offset_shell():
    create("times", 1)
    produce("times", 10, "--message-create-time", 1_600_000_000_000)
    expect(offsets("times") == {0: 10}, "latest")
    expect(offsets("times", "--time", "earliest") == {0: 0}, "earliest")
    expect(offsets("times", "--time", "max-timestamp") != {}, "greatest time")
    expect(offsets("times", "--time", 1_500_000_000_000) == {0: 0}, "by time")


def console():
    create("console", 1)
    text = "".join(f"key{n}:value {n}\n" for n in range(50))
    tool("ConsoleProducer", "--topic", "console", "--reader-property", "parse.key=true",
         "--reader-property", "key.separator=:", input=text)
    said = tool("consumer.ConsoleConsumer", "--topic", "console", "--from-beginning", "--max-messages", 50,
                "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
                "--timeout-ms", 30_000)
    expect(said == text, "not what was sent", said)


def console_group():
    said = tool("consumer.ConsoleConsumer", "--topic", "console", "--group", "console", "--from-beginning",
                "--max-messages", 20, "--timeout-ms", 30_000)
    expect(len(said.splitlines()) == 20, "first", said)
    said = tool("consumer.ConsoleConsumer", "--topic", "console", "--group", "console", "--max-messages", 30,
                "--timeout-ms", 30_000)
    expect(said.splitlines() == [f"value {n}" for n in range(20, 50)], "the rest", said)


def console_auto_create():
    tool("ConsoleProducer", "--topic", "appeared", input="one\n")
    said = tool("consumer.ConsoleConsumer", "--topic", "appeared", "--from-beginning", "--max-messages", 1,
                "--timeout-ms", 30_000)
    expect(said == "one\n", "not what was sent", said)


def performance(codec, count):
    def body():
        topic = f"performance-{codec}"
        create(topic, 2)
        said = java("ProducerPerformance", "--bootstrap-server", address, "--topic", topic, "--num-records", count,
                    "--record-size", 200, "--throughput", -1, "--command-property", "acks=all", f"compression.type={codec}")
        last = said.strip().splitlines()[-1]
        expect(last.startswith(f"{count} records sent"), "not all sent", said)
        expect(sum(offsets(topic).values()) == count, "the ends do not add up")
        said = tool("ConsumerPerformance", "--topic", topic, "--num-records", count, "--timeout", 30_000)
        row = said.strip().splitlines()[-1].split(", ")
        expect(int(row[4]) >= count, "not all read", said)
        return last.split(", ")[1]
    return body


def end_to_end():
    said = java("EndToEndLatency", "--bootstrap-server", address, "--topic", "latency", "--num-records", 500,
                "--producer-acks", "all", "--record-size", 100)
    expect("Percentiles" in said, "no result", said)


def configs():
    said = tool("ConfigCommand", "--entity-type", "topics", "--entity-name", "configured", "--describe", "--all")
    for text in ["retention.ms=60000", "cleanup.policy=compact", "max.message.bytes=", "DEFAULT_CONFIG"]:
        expect(text in said, f"no {text}", said)
    said = tool("ConfigCommand", "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    expect("log.segment.bytes" in said, "no broker settings", said)


def configs_altered():
    tool("ConfigCommand", "--entity-type", "topics", "--entity-name", "configured", "--alter",
         "--add-config", "retention.ms=120000,max.message.bytes=2000000")
    tool("ConfigCommand", "--entity-type", "topics", "--entity-name", "configured", "--alter",
         "--delete-config", "max.message.bytes")
    said = tool("ConfigCommand", "--entity-type", "topics", "--entity-name", "configured", "--describe")
    expect("retention.ms=120000" in said and "max.message.bytes" not in said, "not altered", said)


def records_deleted():
    create("cut", 1)
    produce("cut", 100)
    wanted = os.path.join(suite.broker.folder, "delete.json")
    with open(wanted, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "partitions": [{"topic": "cut", "partition": 0, "offset": 40}]}, file)
    said = tool("DeleteRecordsCommand", "--offset-json-file", wanted)
    expect("low_watermark: 40" in said, "not cut", said)
    expect(offsets("cut", "--time", "earliest") == {0: 40}, "earliest")


def log_dirs():
    said = tool("LogDirsCommand", "--describe", "--topic-list", "verifiable")
    told = json.loads([line for line in said.splitlines() if line.startswith("{")][0])
    parts = told["brokers"][0]["logDirs"][0]["partitions"]
    expect(len(parts) == 4 and all(part["size"] > 0 for part in parts), "sizes", said)


def cluster():
    said = java("ClusterTool", "cluster-id", "--bootstrap-server", address)
    expect("Cluster ID: " in said and "null" not in said, "no id", said)


def refused(name, text, *arguments):
    """A tool that ends with an error, and says which."""
    done = subprocess.run(command(name, "--bootstrap-server", address, *arguments), capture_output=True, text=True,
                          timeout=DEADLINE)
    said = done.stdout + done.stderr
    expect(done.returncode != 0 and text in said, "not refused", said)


def quorum():
    said = tool("MetadataQuorumCommand", "describe", "--status")
    told = dict(re.findall(r"^(\w+):\s+(.*)$", said, re.MULTILINE))
    expect(told.get("LeaderId") == "1" and told["MaxFollowerLag"] == "0", "no leader", said)
    expect(json.loads(told["CurrentVoters"])[0]["id"] == 1 and told["CurrentObservers"] == "[]", "not one voter", said)
    said = tool("MetadataQuorumCommand", "describe", "--replication")
    expect(re.search(r"^1\s.*Leader", said, re.MULTILINE) and len(said.strip().splitlines()) == 2, "not alone", said)


def features():
    expect(tool("FeatureCommand", "describe").strip() == "", "there are some")


def leader_election():
    for kind in ["preferred", "unclean"]:
        said = tool("LeaderElectionCommand", "--election-type", kind, "--topic", "verifiable", "--partition", 0)
        expect("Valid replica already elected for partitions verifiable-0" in said, kind, said)
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")


def reassignment():
    def wanted(*replicas):
        path = os.path.join(suite.broker.folder, "move.json")
        moves = [{"topic": "verifiable", "partition": n, "replicas": replicas} for n in range(4)]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "partitions": moves}, file)
        return ["--reassignment-json-file", path]

    name = "reassign.ReassignPartitionsCommand"
    said = tool(name, "--list")
    expect("No partition reassignments found" in said, "some are under way", said)
    here = wanted(1)
    said = tool(name, "--execute", *here)
    expect("Successfully started partition reassignments" in said, "not accepted", said)
    said = tool(name, "--verify", *here)
    expect(said.count("is completed") == 4, "not completed", said)
    refused(name, "7", "--execute", *wanted(7))


def metric_subscriptions():
    expect(tool("ClientMetricsCommand", "--list").strip() == "", "there are some")
    said = tool("ClientMetricsCommand", "--describe", "--name", "x")
    expect("doesn't exist" in said, "there is one", said)


def transactions():
    said = tool("TransactionsCommand", "list")
    expect(len(said.strip().splitlines()) == 1, "there are some", said)
    said = tool("TransactionsCommand", "describe-producers", "--topic", "verifiable", "--partition", 0)
    expect("ProducerId" in said, "no producers", said)
    said = tool("TransactionsCommand", "find-hanging", "--broker-id", 1)
    expect(len(said.strip().splitlines()) == 1, "some hang", said)


def configs_of_everything():
    for kind in ["topics", "brokers", "users", "clients", "ips", "groups", "client-metrics"]:
        tool("ConfigCommand", "--entity-type", kind, "--describe")
    tool("ConfigCommand", "--entity-type", "broker-loggers", "--entity-name", 1, "--describe")
    said = tool("ConfigCommand", "--entity-type", "brokers", "--entity-default", "--describe")
    expect("Default configs for brokers" in said, "no defaults", said)


def switched_off():
    refused("AclCommand", "SecurityDisabledException", "--list")
    refused("DelegationTokenCommand", "UnsupportedVersionException", "--describe", "--command-config", os.devnull)


def other_groups():
    for name in ["consumer.group.ShareGroupCommand", "streams.StreamsGroupCommand"]:
        expect(tool(name, "--list").strip() == "", f"{name} finds some")


def main():
    suite.check("BrokerApiVersionsCommand", api_versions)
    suite.check("TopicCommand", topics)
    suite.check("VerifiableProducer and VerifiableConsumer", verifiable)
    suite.check("ConsoleProducer and ConsoleConsumer", console)
    suite.check("ConsumerGroupCommand", groups)
    suite.check("GetOffsetShell", offset_shell)
    suite.check("ClusterTool", cluster)
    suite.check("MetadataQuorumCommand", quorum)
    suite.check("ProducerPerformance and ConsumerPerformance, lz4", performance("lz4", 100_000))
    if not suite.smoke:
        for codec in ["none", "gzip", "snappy", "zstd"]:
            suite.check(f"ProducerPerformance and ConsumerPerformance, {codec}", performance(codec, 100_000))
        suite.check("VerifiableConsumer, cooperative and static", verifiable_cooperative)
        suite.check("VerifiableConsumer, two members over a SIGKILL of the broker", two_members_and_a_kill)
        suite.check("ConsoleConsumer in a group", console_group)
        suite.check("ConsoleProducer to a topic that is created by it", console_auto_create)
        suite.check("EndToEndLatency", end_to_end)
        suite.check("GroupsCommand", all_groups)
        suite.check("ConsumerGroupCommand --delete-offsets", group_offsets_deleted)
        suite.check("ConsumerGroupCommand --delete", group_deleted)
        suite.check("TopicCommand with settings", topic_with_configs)
        suite.check("TopicCommand, refusals", wrong_topics)
        suite.check("ConfigCommand --describe", configs)
        suite.check("ConfigCommand --alter", configs_altered)
        suite.check("DeleteRecordsCommand", records_deleted)
        suite.check("LogDirsCommand", log_dirs)
        suite.check("ConfigCommand --describe, every kind", configs_of_everything)
        suite.check("FeatureCommand", features)
        suite.check("LeaderElectionCommand", leader_election)
        suite.check("ReassignPartitionsCommand", reassignment)
        suite.check("ClientMetricsCommand", metric_subscriptions)
        suite.check("TransactionsCommand", transactions)
        suite.check("ShareGroupCommand and StreamsGroupCommand --list", other_groups)
        suite.check("AclCommand and DelegationTokenCommand, switched off", switched_off)
    suite.finish()


main()

"""aiokafka's checks: `aiokafka_checks.py ADDRESS [TEXT-IN-THE-NAME]`; one line for each, read by `run.py`."""

import asyncio
import sys
import time
import traceback

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import OffsetOutOfRangeError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

ADDRESS = sys.argv[1]
DEADLINE = 60


def values(count, start=0):
    return [f"record {n}".encode() for n in range(start, start + count)]


async def create(topic, partitions=1):
    admin = AIOKafkaAdminClient(bootstrap_servers=ADDRESS)
    await admin.start()
    try:
        made = await admin.create_topics([NewTopic(topic, partitions, 1)])
        return made
    finally:
        await admin.close()


async def produce(topic, records, **options):
    async with AIOKafkaProducer(bootstrap_servers=ADDRESS, **options) as producer:
        sent = [await producer.send(topic, value, key=key) for key, value in records]
        return [await one for one in sent]


def plain(count, start=0):
    return [(None, value) for value in values(count, start)]


async def read(consumer, count):
    got, until = [], time.monotonic() + DEADLINE
    while len(got) < count and time.monotonic() < until:
        for batch in (await consumer.getmany(timeout_ms=500)).values():
            got.extend(batch)
    assert len(got) >= count, f"{len(got)} of {count} records"
    return got


def reader(topic, group=None, **more):
    return AIOKafkaConsumer(topic, bootstrap_servers=ADDRESS, group_id=group, auto_offset_reset="earliest",
                            enable_auto_commit=False, **more)


def codec(name):
    async def check():
        topic = f"aio-{name}"
        await create(topic)
        await produce(topic, plain(1000), compression_type=None if name == "none" else name, linger_ms=5)
        async with reader(topic) as consumer:
            assert [record.value for record in await read(consumer, 1000)] == values(1000)
    check.__name__ = f"check_codec_{name}"
    return check


async def check_acks_0_and_1():
    await create("aio-acks")
    await produce("aio-acks", plain(100), acks=0)
    await produce("aio-acks", plain(100, 100), acks=1)
    async with reader("aio-acks") as consumer:
        assert [record.value for record in await read(consumer, 200)] == values(200)


async def check_idempotent_producer():
    await create("aio-idempotent")
    await produce("aio-idempotent", plain(2000), enable_idempotence=True)
    async with reader("aio-idempotent") as consumer:
        assert [record.value for record in await read(consumer, 2000)] == values(2000)


async def check_topic_created_by_a_send():
    await produce("aio-appears", plain(3))
    async with reader("aio-appears") as consumer:
        assert len(await read(consumer, 3)) == 3


async def check_headers_keys_and_null_values():
    await create("aio-parts")
    async with AIOKafkaProducer(bootstrap_servers=ADDRESS) as producer:
        await producer.send_and_wait("aio-parts", None, key=b"k", headers=[("a", b"b"), ("a", b"")], timestamp_ms=1_600_000_000_000)
    async with reader("aio-parts") as consumer:
        [record] = await read(consumer, 1)
        assert (record.key, record.value, record.timestamp) == (b"k", None, 1_600_000_000_000)
        assert list(record.headers) == [("a", b"b"), ("a", b"")]


async def check_group_commit_and_resume():
    await create("aio-resume", 2)
    await produce("aio-resume", [(str(n).encode(), value) for n, value in enumerate(values(100))])
    async with reader("aio-resume", "aio-resume") as consumer:
        await read(consumer, 100)
        await consumer.commit()
    await produce("aio-resume", plain(5, 100))
    async with reader("aio-resume", "aio-resume") as consumer:
        assert sorted(record.value for record in await read(consumer, 5)) == sorted(values(5, 100))


class Count(ConsumerRebalanceListener):
    """Keeps what the member owns."""

    def __init__(self):
        self.owned = set()

    async def on_partitions_revoked(self, revoked):
        self.owned = set()

    async def on_partitions_assigned(self, assigned):
        self.owned = set(assigned)


async def three(strategy, topic):
    await create(topic, 6)
    await produce(topic, [(str(n).encode(), value) for n, value in enumerate(values(300))])
    members, counts, seen = [], [], set()
    for _ in range(3):
        member = AIOKafkaConsumer(bootstrap_servers=ADDRESS, group_id=topic, auto_offset_reset="earliest", session_timeout_ms=6000,
                                  heartbeat_interval_ms=300, partition_assignment_strategy=strategy)
        counts.append(Count())
        member.subscribe([topic], listener=counts[-1])
        await member.start()
        members.append(member)
    try:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and (len(seen) < 300 or sorted(len(count.owned) for count in counts) != [2, 2, 2]):
            for member in members:
                for batch in (await member.getmany(timeout_ms=100)).values():
                    seen.update(record.value for record in batch)
        assert len(seen) == 300, f"{len(seen)} of 300 records"
        assert sorted(len(count.owned) for count in counts) == [2, 2, 2], [count.owned for count in counts]
        await members.pop().stop()
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and sum(len(count.owned) for count in counts[:2]) != 6:
            for member in members:
                await member.getmany(timeout_ms=100)
        assert sum(len(count.owned) for count in counts[:2]) == 6, "the partitions of a member that left"
    finally:
        await asyncio.gather(*(member.stop() for member in members))


async def check_three_members_round_robin():
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    await three((RoundRobinPartitionAssignor,), "aio-three")


async def check_three_members_sticky():
    await three((StickyPartitionAssignor,), "aio-sticky")


async def check_static_member():
    await create("aio-static")
    await produce("aio-static", plain(10))
    for start in (0, 5):
        async with reader("aio-static", "aio-static", group_instance_id="one", max_poll_records=5) as consumer:
            assert [record.value for record in (await read(consumer, 5))[:5]] == values(5, start)
            await consumer.commit({TopicPartition("aio-static", 0): start + 5})


async def check_seek_by_time_and_to_the_ends():
    topic, place = "aio-seek", TopicPartition("aio-seek", 0)
    await create(topic)
    async with AIOKafkaProducer(bootstrap_servers=ADDRESS) as producer:
        for n, value in enumerate(values(20)):
            await producer.send_and_wait(topic, value, timestamp_ms=1_600_000_000_000 + n * 1000)
    async with reader(topic) as consumer:
        found = await consumer.offsets_for_times({place: 1_600_000_004_500})
        assert (found[place].offset, found[place].timestamp) == (5, 1_600_000_005_000), found
        assert (await consumer.offsets_for_times({place: 1_700_000_000_000}))[place] is None
        assert await consumer.beginning_offsets([place]) == {place: 0}
        assert await consumer.end_offsets([place]) == {place: 20}
        consumer.seek(place, 15)
        assert [record.offset for record in await read(consumer, 5)] == [15, 16, 17, 18, 19]
        await consumer.seek_to_beginning(place)
        assert (await read(consumer, 20))[0].offset == 0


async def check_offset_out_of_range():
    await create("aio-range")
    await produce("aio-range", plain(3))
    consumer = AIOKafkaConsumer(bootstrap_servers=ADDRESS, auto_offset_reset="none", group_id=None)
    place = TopicPartition("aio-range", 0)
    async with consumer:
        consumer.assign([place])
        consumer.seek(place, 100)
        try:
            await asyncio.wait_for(consumer.getone(), DEADLINE)
        except OffsetOutOfRangeError:
            return
    raise AssertionError("no OffsetOutOfRange")


async def check_admin():
    await create("aio-admin", 2)
    admin = AIOKafkaAdminClient(bootstrap_servers=ADDRESS)
    await admin.start()
    try:
        made = await admin.create_topics([NewTopic("aio-admin", 1, 1)])
        assert made.topic_errors[0][1] == TopicAlreadyExistsError.errno, made
        await admin.create_partitions({"aio-admin": NewPartitions(4)})
        [told] = await admin.describe_topics(["aio-admin"])
        assert len(told["partitions"]) == 4, told
        assert "aio-admin" in await admin.list_topics()
        assert len((await admin.describe_cluster())["brokers"]) == 1
        await admin.delete_topics(["aio-admin"])
        gone = await admin.delete_topics(["aio-admin"])
        assert gone.topic_error_codes[0][1] == UnknownTopicOrPartitionError.errno, gone
    finally:
        await admin.close()


async def check_groups():
    await create("aio-grouped")
    await produce("aio-grouped", plain(3))
    admin = AIOKafkaAdminClient(bootstrap_servers=ADDRESS)
    await admin.start()
    try:
        async with reader("aio-grouped", "aio-grouped") as consumer:
            await read(consumer, 3)
            await consumer.commit()
            [told] = await admin.describe_consumer_groups(["aio-grouped"])
            assert told.groups[0][2] == "Stable", told
        assert any(group[0] == "aio-grouped" for group in await admin.list_consumer_groups())
        offsets = await admin.list_consumer_group_offsets("aio-grouped")
        assert offsets[TopicPartition("aio-grouped", 0)].offset == 3, offsets
    finally:
        await admin.close()


async def main():
    print(f"aiokafka {aiokafka.__version__}")
    checks = [codec(name) for name in ["none", "gzip", "snappy", "lz4", "zstd"]]
    checks += [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        if len(sys.argv) > 2 and sys.argv[2] not in f"aiokafka {name}":
            continue
        try:
            await asyncio.wait_for(check(), 2 * DEADLINE)
        except Exception as error:  # the line is the report, whatever went wrong
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {name}: {type(error).__name__} {error} (line {where.lineno})".replace("\n", " "), flush=True)
        else:
            print(f"ok {name}", flush=True)


asyncio.run(main())

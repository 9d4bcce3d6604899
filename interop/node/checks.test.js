// kafkajs against the broker named by TRAMLINE_BROKER.
const assert = require('node:assert');
const { test } = require('node:test');
const { Kafka, CompressionTypes, logLevel } = require('kafkajs');

const kafka = new Kafka({
  clientId: 'checks', brokers: [process.env.TRAMLINE_BROKER], logLevel: logLevel.NOTHING, retry: { retries: 8 },
});
const DEADLINE = 60_000;

const values = (count, from = 0) => Array.from({ length: count }, (_, n) => `record ${n + from}`);

async function withAdmin(body) {
  const admin = kafka.admin();
  await admin.connect();
  try { return await body(admin); } finally { await admin.disconnect(); }
}

const create = (topic, numPartitions = 1, configEntries = []) => withAdmin((admin) => admin.createTopics({
  topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }],
}));

async function produce(topic, messages, options = {}, sending = {}) {
  const producer = kafka.producer(options);
  await producer.connect();
  try { return await producer.send({ topic, messages: messages.map((value) => (typeof value === 'string' ? { value } : value)), ...sending }); } finally { await producer.disconnect(); }
}

// Runs one member until `count` records came, then until `settled` says so; stops it cleanly.
async function consume(topic, groupId, count, { batch = false, settle = async () => {} } = {}) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10_000, maxWaitTimeInMs: 200 });
  const got = [];
  let enough;
  const done = new Promise((resolve, reject) => { enough = resolve; setTimeout(() => reject(new Error(`${got.length} of ${count} records`)), DEADLINE).unref(); });
  await consumer.connect();
  try {
    await consumer.subscribe({ topic, fromBeginning: true });
    const take = (message, partition) => { got.push({ ...message, partition }); if (got.length >= count) enough(); };
    await consumer.run(batch
      ? { eachBatch: async ({ batch: b, resolveOffset, heartbeat }) => { for (const m of b.messages) { take(m, b.partition); resolveOffset(m.offset); } await heartbeat(); } }
      : { eachMessage: async ({ message, partition }) => take(message, partition) });
    await done;
    await settle(consumer);
  } finally { await consumer.disconnect(); }
  return got;
}

test('a first send creates the topic', async () => {
  await produce('appears', ['one', 'two']);
  const got = await consume('appears', 'appears', 2);
  assert.deepStrictEqual(got.map((m) => m.value.toString()).sort(), ['one', 'two']);
});

test('keys, headers, tombstones and times come back', async () => {
  await create('parts');
  await produce('parts', [{ key: 'k', value: null, headers: { a: 'b' }, timestamp: '1600000000000' }, { key: null, value: '' }]);
  const [first, second] = await consume('parts', 'parts', 2);
  assert.strictEqual(first.key.toString(), 'k');
  assert.strictEqual(first.value, null);
  assert.strictEqual(first.headers.a.toString(), 'b');
  assert.strictEqual(first.timestamp, '1600000000000');
  assert.strictEqual(second.key, null);
  assert.strictEqual(second.value.length, 0);
});

for (const acks of [-1, 1, 0]) {
  test(`acks ${acks}`, async () => {
    await create(`acks${acks}`);
    await produce(`acks${acks}`, values(100), {}, { acks });
    assert.strictEqual((await consume(`acks${acks}`, `acks${acks}`, 100)).length, 100);
  });
}

test('gzip', async () => {
  await create('gzip');
  await produce('gzip', values(500), {}, { compression: CompressionTypes.GZIP });
  assert.deepStrictEqual((await consume('gzip', 'gzip', 500)).map((m) => m.value.toString()), values(500));
});

test('an idempotent producer', async () => {
  await create('idempotent');
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let n = 0; n < 20; n += 1) await producer.send({ topic: 'idempotent', messages: values(10, n * 10).map((value) => ({ value })) });
  await producer.disconnect();
  assert.deepStrictEqual((await consume('idempotent', 'idempotent', 200)).map((m) => m.value.toString()), values(200));
});

test('eachBatch, and a second member resumes at the commit', async () => {
  await create('batch', 3);
  await produce('batch', values(300).map((value, n) => ({ key: `k${n}`, value })));
  assert.strictEqual((await consume('batch', 'batch', 300, { batch: true })).length, 300);
  await produce('batch', values(5, 300));
  const rest = await consume('batch', 'batch', 5);
  assert.deepStrictEqual(rest.map((m) => m.value.toString()).sort(), values(5, 300).sort());
});

test('three members share the partitions', async () => {
  await create('shared', 6);
  const members = [];
  const owned = new Map();
  let tell = () => {};
  const even = new Promise((resolve) => { tell = () => { if (owned.size === 3 && [...owned.values()].every((n) => n === 2)) resolve(); }; });
  const seen = new Set();
  let all;
  const complete = new Promise((resolve) => { all = resolve; });
  for (let n = 0; n < 3; n += 1) {
    const member = kafka.consumer({ groupId: 'three', sessionTimeout: 10_000, heartbeatInterval: 500, maxWaitTimeInMs: 200 });
    members.push(member);
    await member.connect();
    await member.subscribe({ topic: 'shared', fromBeginning: true });
    member.on(member.events.GROUP_JOIN, ({ payload }) => { owned.set(n, (payload.memberAssignment.shared || []).length); tell(); });
    await member.run({ eachMessage: async ({ message }) => { seen.add(message.value.toString()); if (seen.size === 600) all(); } });
  }
  await even;
  await produce('shared', values(600).map((value, n) => ({ key: `k${n}`, value })));
  await complete;
  await Promise.all(members.map((member) => member.disconnect()));
});

test('seek and pause', async () => {
  await create('seek');
  await produce('seek', values(50));
  const consumer = kafka.consumer({ groupId: 'seek', maxWaitTimeInMs: 200 });
  const got = [];
  let enough;
  const done = new Promise((resolve) => { enough = resolve; });
  await consumer.connect();
  await consumer.subscribe({ topic: 'seek', fromBeginning: true });
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => {
    got.push(Number(message.offset));
    if (got.filter((offset) => offset === 49).length === 2) enough();
    if (message.offset === '49' && got.length === 50) consumer.seek({ topic: 'seek', partition: 0, offset: '40' });
  } });
  await done;
  await consumer.disconnect();
  assert.deepStrictEqual(got, [...Array(50).keys(), ...Array.from({ length: 10 }, (_, n) => n + 40)]);
});

test('admin: topics, partitions, metadata', () => withAdmin(async (admin) => {
  await create('described', 2);
  await admin.createPartitions({ topicPartitions: [{ topic: 'described', count: 4 }] });
  const { topics } = await admin.fetchTopicMetadata({ topics: ['described'] });
  assert.strictEqual(topics[0].partitions.length, 4);
  assert.ok((await admin.listTopics()).includes('described'));
  assert.ok((await admin.describeCluster()).brokers.length === 1);
  assert.strictEqual(await admin.createTopics({ topics: [{ topic: 'described' }] }), false);
  await admin.deleteTopics({ topics: ['described'] });
  assert.ok(!(await admin.listTopics()).includes('described'));
  await assert.rejects(admin.deleteTopics({ topics: ['described'], timeout: 1000 }), /does not host|unknown topic/i);
}));

test('admin: offsets of topics and groups', () => withAdmin(async (admin) => {
  await create('offsets');
  await produce('offsets', values(10).map((value, n) => ({ value, timestamp: String(1_600_000_000_000 + n * 1000) })));
  assert.deepStrictEqual(await admin.fetchTopicOffsets('offsets'), [{ partition: 0, offset: '10', high: '10', low: '0' }]);
  assert.deepStrictEqual(await admin.fetchTopicOffsetsByTimestamp('offsets', 1_600_000_004_000), [{ partition: 0, offset: '4' }]);
  await consume('offsets', 'offsets', 10);
  const committed = async () => (await admin.fetchOffsets({ groupId: 'offsets', topics: ['offsets'] }))[0].partitions[0].offset;
  assert.strictEqual(await committed(), '10');
  await admin.resetOffsets({ groupId: 'offsets', topic: 'offsets', earliest: true });
  assert.strictEqual(await committed(), '-2');
  await admin.setOffsets({ groupId: 'offsets', topic: 'offsets', partitions: [{ partition: 0, offset: '7' }] });
  assert.strictEqual(await committed(), '7');
}));

test('admin: groups', () => withAdmin(async (admin) => {
  await create('grouped');
  await produce('grouped', values(3));
  await consume('grouped', 'grouped', 3, { settle: async () => {
    const { groups: [group] } = await admin.describeGroups(['grouped']);
    assert.strictEqual(group.state, 'Stable');
    assert.strictEqual(group.members.length, 1);
  } });
  assert.ok((await admin.listGroups()).groups.some((group) => group.groupId === 'grouped'));
  await admin.deleteGroups(['grouped']);
  assert.ok(!(await admin.listGroups()).groups.some((group) => group.groupId === 'grouped'));
}));

test('admin: deleted records', () => withAdmin(async (admin) => {
  await create('cut');
  await produce('cut', values(10));
  await admin.fetchTopicOffsets('cut'); // kafkajs deletes only from topics that it has asked about
  await admin.deleteTopicRecords({ topic: 'cut', partitions: [{ partition: 0, offset: '4' }] });
  assert.strictEqual((await admin.fetchTopicOffsets('cut'))[0].low, '4');
}));

test('admin: settings', () => withAdmin(async (admin) => {
  await create('settings', 1, [{ name: 'retention.ms', value: '60000' }]);
  const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: 'settings' }] });
  assert.strictEqual(resources[0].configEntries.find((entry) => entry.configName === 'retention.ms').configValue, '60000');
  await admin.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: 'settings', configEntries: [{ name: 'retention.ms', value: '90000' }] }] });
  const again = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: 'settings', configNames: ['retention.ms'] }] });
  assert.strictEqual(again.resources[0].configEntries[0].configValue, '90000');
}));

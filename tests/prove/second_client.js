// @azure/event-hubs against a hub: `node second_client.js send COUNT` or `receive COUNT`; the hub is in EVENTHUBS.
// What is sent, and what has come, is printed as a line of JSON for each event.
const { EventHubConsumerClient, EventHubProducerClient } = require(`${process.env.PACKAGES}/@azure/event-hubs`);

const [what, count] = [process.argv[2], Number(process.argv[3])];
const hub = [process.env.EVENTHUBS, "hub"];
const PER_BATCH = 50;

function event(number) {
  const bodies = [{ n: number, text: "Zürich 東京" }, Buffer.from([0, 255, number % 256]), `text ${number}`];
  return { body: bodies[number % 3], properties: { id: String(number) } };
}

async function send() {
  const producer = new EventHubProducerClient(...hub);
  const { partitionIds } = await producer.getEventHubProperties();
  for (let begin = 0; begin < count; begin += PER_BATCH) {
    const turn = begin / PER_BATCH;
    // By a key, to a partition, and where the service likes.
    const to = [{ partitionKey: `key ${turn}` }, { partitionId: partitionIds[turn % partitionIds.length] }, {}][turn % 3];
    const batch = await producer.createBatch(to);
    for (let number = begin; number < Math.min(begin + PER_BATCH, count); number++) {
      const each = event(number);
      if (!batch.tryAdd(each)) throw new Error("a batch takes more than that");
      const body = Buffer.isBuffer(each.body) ? each.body : Buffer.from(JSON.stringify(each.body));
      say({ id: each.properties.id, body: body.toString("base64"), key: to.partitionKey ?? null });
    }
    await producer.sendBatch(batch);
  }
  await producer.close();
}

async function receive() {
  const consumer = new EventHubConsumerClient("$Default", ...hub);
  let left = count;
  await new Promise((resolve, reject) => {
    consumer.subscribe(
      {
        processEvents: async (events, { partitionId }) => {
          for (const each of events) {
            say({
              id: each.properties?.id ?? null,
              body: Buffer.from(each.body).toString("base64"),
              key: each.partitionKey ?? null,
              partition: Number(partitionId),
              number: each.sequenceNumber,
              offset: String(each.offset),
              ms: each.enqueuedTimeUtc.getTime(),
            });
          }
          left -= events.length;
          if (left <= 0) resolve();
        },
        processError: async (error) => reject(error),
      },
      { startPosition: { offset: "-1" }, skipParsingBodyAsJson: true, maxWaitTimeInSeconds: 1 },
    );
  });
  await consumer.close();
}

function say(line) {
  console.log(JSON.stringify(line));
}

(what === "send" ? send() : receive()).catch((error) => {
  console.error(error);
  process.exit(1);
});

// A worker, and a program that gives it a work, with Node's standard library:
// AGHD_API_SOCKET=… node agent.mjs worker, AGHD_API_SOCKET=… node agent.mjs give "Run the migration smoke test"
import { createHash, randomUUID } from "node:crypto";
import { request } from "node:http";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const socketPath = process.env.AGHD_API_SOCKET;

class Refused extends Error {}

function send(method, path, body, headers = {}) {
  const text = body && JSON.stringify(body);
  const options = { socketPath, method, path, headers: { ...headers, ...(text && { "content-type": "application/json" }) } };
  return new Promise((resolve, reject) => request(options, resolve).on("error", reject).end(text));
}

// The answer of the daemon. The request is repeated while the daemon is away.
async function call(method, path, body) {
  for (;;) {
    try {
      const response = await send(method, path, body);
      const answer = JSON.parse(Buffer.concat(await response.toArray()));
      if (response.statusCode < 400) return answer;
      if (response.statusCode !== 503) throw new Refused(`${answer.code}: ${answer.message}`);
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    await sleep(500);
  }
}

// The events of a work after a sequence, without end: over restarts of the daemon, each of them once.
async function* events(work, last) {
  for (;;) {
    try {
      const path = `/v1/events?work=${encodeURIComponent(work)}`;
      const response = await send("GET", path, undefined, { "last-event-id": last });
      let rest = "";
      for await (const part of response.setEncoding("utf8")) {
        const lines = (rest + part).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (line.startsWith("id: ")) last = line.slice(4);
          if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
        }
      }
    } catch {} // the connection is lost
    await sleep(500);
  }
}

// Acknowledge a message; it may have been already, with the end of its work.
const ack = (seq) => call("POST", `/v1/inbox/${seq}/ack`, {}).catch(() => {});

// One job: each message that it sends has an id of its own, the same when the work is taken again.
class Job {
  constructor({ seq, lease, message }) {
    Object.assign(this, { seq, lease, message, text: message.envelope.body.text });
  }

  act(verb, fields, name = verb) {
    const id = "msg_" + createHash("sha256").update(`${name} ${this.message.id}`).digest("hex");
    return call("POST", `/v1/works/${encodeURIComponent(this.message.work_id)}/${verb}`, { id, ...fields });
  }

  async ask(question, number = 1) {
    const asked = await this.act("need-input", { message: question }, `question ${number}`);
    for await (const { message, work } of events(this.message.work_id, asked.seq)) {
      if (["completed", "failed", "canceled"].includes(work?.after)) throw new Refused("the work has ended");
      const said = message?.direction === "in" && message.kind === "say";
      if (said && ["advanced", "unchanged"].includes(message.outcome)) {
        await ack(message.seq);
        return message.envelope.body.text;
      }
    }
  }

  renew() {
    return call("POST", `/v1/inbox/${this.seq}/lease`, { lease: this.lease, visibility: "1m" }).catch(() => {});
  }
}

async function handle(job) {
  const branch = await job.ask("Which branch?");
  await job.act("update", { message: `testing ${branch}` });
  await job.act("complete", { message: `tested ${branch}`, result: { branch, passed: job.text.includes("smoke") } });
}

async function worker() {
  for (;;) {
    const { item } = await call("POST", "/v1/inbox/next", { wait: "1m", visibility: "1m", others: false });
    if (!item) continue;
    const job = new Job(item);
    if (item.message.outcome !== "opened") {
      await ack(item.seq);
    } else {
      const renewing = setInterval(() => job.renew(), 20_000);
      try {
        await job.act("accept", {});
        await handle(job);
      } catch (error) {
        await job.act("fail", { message: String(error) }).catch(() => {}); // refused when the work has ended
      }
      clearInterval(renewing);
      await ack(item.seq);
    }
  }
}

async function give(text) {
  const input = createInterface({ input: process.stdin });
  const lines = input[Symbol.asyncIterator]();
  const { peers } = await call("POST", "/v1/whois", { query: "test.run", wait: "1m", first: true });
  if (!peers.length) throw new Error("no peer has the capability test.run");
  const newId = () => "msg_" + randomUUID().replaceAll("-", "");
  const opening = { id: newId(), to_capability: "test.run", text, reactions: "none" };
  const { work_id } = await call("POST", "/v1/works", opening);
  for (;;) {
    const { work } = await call("GET", `/v1/works/${work_id}?wait=1m`);
    if (work.state === "needs_input") {
      process.stdout.write(`${work.message} `);
      const message = (await lines.next()).value;
      await call("POST", `/v1/works/${work_id}/say`, { id: newId(), message });
    } else if (["completed", "failed", "canceled"].includes(work.state)) {
      console.log(work.state, work.message, JSON.stringify(work.result));
      return input.close();
    }
  }
}

const [command, ...rest] = process.argv.slice(2);
await (command === "worker" ? worker() : give(rest.join(" ")));

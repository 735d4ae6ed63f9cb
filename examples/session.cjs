// Several requests over one Session, from Node.js: npm install @grpc/grpc-js @grpc/proto-loader
//
//     node examples/session.cjs localhost:50051 proto PROTOS
//
// PROTOS is a folder with google/rpc/status.proto: a checkout of https://github.com/googleapis/googleapis, or
// node_modules/google-proto-files of npm, or Python's site-packages with googleapis-common-protos.

const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const [address, ...includeDirs] = process.argv.slice(2);
const definition = protoLoader.loadSync("draftline/v1/engine.proto", { includeDirs, keepCase: true, enums: String, longs: String, oneofs: true });
const { draftline } = grpc.loadPackageDefinition(definition);
const client = new draftline.v1.InferenceService(address, grpc.credentials.createInsecure());

const requests = {
  short: { text: "The sky is", sampling: { max_tokens: 8, temperature: 0 } },
  chat: { chat: { messages: [{ role: "user", content: "Name a city." }] }, sampling: { max_tokens: 5 } },
  wrong: { text: "a", sampling: { top_p: 7 } },
  endless: { text: "a", sampling: { max_tokens: 100000, ignore_eos: true } },
};

const session = client.Session();
const texts = {};
const ends = {};
session.on("data", ({ request_id: id, event, delta, finished, error }) => {
  if (event === "delta") {
    texts[id] = (texts[id] ?? "") + delta.text;
    if (id === "endless") session.write({ request_id: id, cancel: {} });
    return;
  }
  ends[id] = event === "finished" ? finished.finish_reason : `error ${error.code}: ${error.message}`;
  if (Object.keys(ends).length === Object.keys(requests).length) session.end();
});
session.on("end", () => {
  for (const id of Object.keys(requests)) console.log(JSON.stringify({ id, text: texts[id] ?? "", end: ends[id] }));
  client.close();
});
session.on("error", (error) => {
  console.error(error.message);
  process.exitCode = 1;
});
for (const [request_id, submit] of Object.entries(requests)) session.write({ request_id, submit });

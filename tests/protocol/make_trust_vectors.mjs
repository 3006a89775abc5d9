// Makes tests/vectors/trust_envelopes.jsonl and trust_numbers.jsonl: `node tests/protocol/make_trust_vectors.mjs`.
//
// A second implementation on purpose: JSON.stringify is where RFC 8785 takes its numbers and strings from, Array.sort compares
// UTF-16 code units, and Ed25519 is OpenSSL's through node. Nothing of the project's own code takes part.
import crypto from "node:crypto";
import fs from "node:fs";

const folder = new URL("../vectors/", import.meta.url);
const PROFILE = "agh-network.trust.ed25519-jcs/v1";
const NOW = 1776366200;

function identity(seed) {
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), Buffer.from(seed)]);
  const key = crypto.createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  const pub = crypto.createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32);
  const digest = crypto.createHash("sha256").update(pub).digest("hex");
  return { key, pubkey: pub.toString("base64url"), key_id: "sha256:" + digest, fingerprint: digest.slice(0, 32) };
}

function canonical(value) {
  if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((key) => JSON.stringify(key) + ":" + canonical(value[key]));
  return "{" + members.join(",") + "}";
}

const test = identity(Uint8Array.from({ length: 32 }, (_, i) => i)); // the key of the specification, section 8
const other = identity(new Uint8Array(32).fill(7));
const proofOf = (who) => ({ profile: PROFILE, alg: "Ed25519", key_id: who.key_id, pubkey: who.pubkey });
const signature = (text, who) => crypto.sign(null, Buffer.from(text), who.key).toString("base64url");

function base(changes = {}) {
  return {
    protocol: "agh-network/v0", id: "msg_golden", workspace_id: "ws_alpha", kind: "say", channel: "builders",
    from: "ops@" + test.fingerprint, to: null, surface: "thread", thread_id: "thread_golden", ts: NOW,
    body: { text: "hello" }, proof: proofOf(test), ...changes,
  };
}

const lines = [];
function add(name, raw, state, extra = {}) {
  lines.push(JSON.stringify({ name, now: NOW, raw, state, ...extra }));
}
function good(name, document, write = JSON.stringify) {
  const text = canonical(document);
  const sig = signature(text, test);
  document.proof.sig = sig;
  add(name, write(document), "verified", { canonical: text, sig, key_id: test.key_id });
}
function signed(changes, who = test, edit = () => {}) {
  const document = base(changes);
  document.proof.sig = signature(canonical(document), who);
  edit(document);
  return JSON.stringify(document);
}
function bad(name, raw, field) {
  add(name, raw, "rejected", { field });
}

good("golden", base());
good("indented", base(), (document) => JSON.stringify(document, null, 2));
good("reversed", base(), (document) => JSON.stringify(Object.fromEntries(Object.entries(document).reverse())));
good("without_null_fields", (() => { const it = base(); delete it.to; return it; })());
good("with_null_fields", base({ reply_to: null, expires_at: null, work_id: null }));
good("unknown_fields", base({ later: { minor: [1, "2", null, true] }, ext: { "acme.x": {} } }));
good("numbers", base({ ext: { n: [0, -1, 1.5, 1e30, 1e-7, 333333333.33333329, 9007199254740991, 5e-324, 0.1 + 0.2] } }));
good("negative_zero", base({ ext: { n: 0 } }), (document) => JSON.stringify(document).replace('"n":0', '"n":-0.0'));
good("exponents", base({ ext: { n: [100, 20] } }), (document) => JSON.stringify(document).replace("[100,20]", "[1E2,2.0e+1]"));
good("strings", base({ body: { text: "\u0000\b\t\n\u000b\f\r\u001f \"\\/\u007f\u0080\u2028\u2029é€😀\ufeff</script>" } }));
good("escaped_on_the_wire", base({ body: { text: "Aé😀/" } }), (document) =>
  JSON.stringify(document).replace("Aé😀/", "\\u0041\\u00E9\\uD83D\\ude00\\/"));
good("keys_beyond_the_basic_plane", base({ ext: { "😀": 1, "\ufb33": 2, "€": 3, "ö": 4, "\u0080": 5, "\r": 6, "1": 7, "": 8 } }));
good("proof_member_of_a_later_version", (() => { const it = base(); it.proof.note = "kept"; return it; })());

add("plain_peer", JSON.stringify({ ...base({ from: "ops" }), proof: null }), "unverified");
add("plain_peer_without_the_field", JSON.stringify({ ...base({ from: "ops" }), proof: undefined }), "unverified");
add("plain_peer_other_profile", JSON.stringify({ ...base({ from: "ops" }), proof: { profile: "acme/v1" } }), "unverified");

bad("proof_stripped", JSON.stringify({ ...base(), proof: null }), "proof");
bad("proof_absent", JSON.stringify({ ...base(), proof: undefined }), "proof");
bad("proof_is_a_list", JSON.stringify({ ...base(), proof: [] }), "proof");
bad("proof_is_a_string", JSON.stringify({ ...base({ from: "ops" }), proof: "x" }), "proof");
bad("profile_missing", signed({}, test, (it) => delete it.proof.profile), "proof.profile");
bad("profile_missing_plain", signed({ from: "ops" }, test, (it) => delete it.proof.profile), "proof.profile");
bad("profile_is_a_number", signed({}, test, (it) => (it.proof.profile = 1)), "proof.profile");
bad("profile_is_another", signed({ proof: { ...proofOf(test), profile: "acme/v1" } }), "proof.profile");
bad("alg_missing", signed({}, test, (it) => delete it.proof.alg), "proof.alg");
bad("alg_in_lower_case", signed({ proof: { ...proofOf(test), alg: "ed25519" } }), "proof.alg");
bad("alg_is_none", signed({ proof: { ...proofOf(test), alg: "none" } }), "proof.alg");
bad("pubkey_missing", signed({}, test, (it) => delete it.proof.pubkey), "proof.pubkey");
bad("pubkey_padded", signed({ proof: { ...proofOf(test), pubkey: test.pubkey + "=" } }), "proof.pubkey");
bad("pubkey_other_alphabet", signed({ proof: { ...proofOf(test), pubkey: test.pubkey.replace("_", "/") } }), "proof.pubkey");
bad("pubkey_not_canonical", signed({ proof: { ...proofOf(test), pubkey: test.pubkey.slice(0, -1) + "h" } }), "proof.pubkey");
bad("pubkey_31_bytes", signed({ proof: { ...proofOf(test), pubkey: test.pubkey.slice(0, 42) } }), "proof.pubkey");
bad("pubkey_33_bytes", signed({ proof: { ...proofOf(test), pubkey: test.pubkey.slice(0, 42) + "AA" } }), "proof.pubkey");
bad("pubkey_with_a_line_break", signed({ proof: { ...proofOf(test), pubkey: test.pubkey.slice(0, 42) + "\n" } }), "proof.pubkey");
bad("key_id_missing", signed({}, test, (it) => delete it.proof.key_id), "proof.key_id");
bad("key_id_of_another", signed({ proof: { ...proofOf(test), key_id: other.key_id } }), "proof.key_id");
bad("key_id_in_upper_case", signed({ proof: { ...proofOf(test), key_id: "sha256:" + test.key_id.slice(7).toUpperCase() } }), "proof.key_id");
bad("key_id_without_prefix", signed({ proof: { ...proofOf(test), key_id: test.key_id.slice(7) } }), "proof.key_id");
bad("from_is_plain", signed({ from: "ops" }), "from");
bad("from_is_a_number", signed({ from: 5 }), "from");
bad("from_has_a_bad_nickname", signed({ from: "o.ps@" + test.fingerprint }), "from");
bad("from_has_an_empty_nickname", signed({ from: "@" + test.fingerprint }), "from");
bad("from_has_a_long_nickname", signed({ from: "a".repeat(33) + "@" + test.fingerprint }), "from");
bad("from_has_another_fingerprint", signed({ from: "ops@" + other.fingerprint }), "from");
bad("from_has_half_a_fingerprint", signed({ from: "ops@" + test.fingerprint.slice(0, 16) }), "from");
bad("from_in_upper_case", signed({ from: "ops@" + test.fingerprint.toUpperCase() }), "from");
bad("sig_missing", JSON.stringify(base()), "proof.sig");
bad("sig_is_a_number", signed({}, test, (it) => (it.proof.sig = 7)), "proof.sig");
bad("sig_padded", signed({}, test, (it) => (it.proof.sig += "==")), "proof.sig");
bad("sig_63_bytes", signed({}, test, (it) => (it.proof.sig = it.proof.sig.slice(0, 84))), "proof.sig");
bad("sig_in_hex", signed({}, test, (it) => (it.proof.sig = Buffer.from(it.proof.sig, "base64url").toString("hex"))), "proof.sig");
bad("sig_of_another_key", signed({}, other), "proof.sig");
bad("sig_of_zeros", signed({}, test, (it) => (it.proof.sig = Buffer.alloc(64).toString("base64url"))), "proof.sig");
const ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
bad("sig_malleable", signed({}, test, (it) => {
  const raw = Buffer.from(it.proof.sig, "base64url"); // S + L: the same point, refused by RFC 8032 section 5.1.7
  let s = BigInt("0x" + Buffer.from(raw.subarray(32)).reverse().toString("hex")) + ORDER;
  for (let i = 32; i < 64; i++, s >>= 8n) raw[i] = Number(s & 255n);
  it.proof.sig = raw.toString("base64url");
}), "proof.sig");
bad("sig_over_injected_null", (() => { const it = JSON.parse(signed({ reply_to: null })); delete it.reply_to; return JSON.stringify(it); })(), "proof.sig");
bad("duplicate_name", signed({}).replace('"kind":"say"', '"kind":"say","kind":"say"'), "");
bad("duplicate_name_inside", signed({}).replace('"text":"hello"', '"text":"x","text":"hello"'), "");
bad("duplicate_name_by_escape", signed({}).replace('"text":"hello"', '"te\\u0078t":"x","text":"hello"'), "");
bad("duplicate_sig", signed({}).replace('"sig":', '"sig":"x","sig":'), "");
bad("integer_beyond_2_53", signed({ ext: { n: 9007199254740992 } }), "");
bad("integer_far_beyond", signed({}).replace('"proof":', '"ext":{"n":-123456789012345678901234567890},"proof":'), "");
bad("number_beyond_a_double", signed({}).replace('"proof":', '"ext":{"n":1e400},"proof":'), "");
bad("lone_surrogate", signed({}).replace("hello", "\\ud800"), "");
bad("lone_surrogate_in_a_name", signed({}).replace('"proof":', '"ext":{"\\udc00":1},"proof":'), "");

fs.writeFileSync(new URL("trust_envelopes.jsonl", folder), lines.join("\n") + "\n");

// Doubles by their bits: the samples of RFC 8785 appendix B, then all magnitudes, evenly drawn from a fixed seed.
const bits = `0000000000000000 8000000000000000 0000000000000001 8000000000000001 7fefffffffffffff ffefffffffffffff
4340000000000000 c340000000000000 4430000000000000 44b52d02c7e14af5 44b52d02c7e14af6 44b52d02c7e14af7 444b1ae4d6e2ef4e
444b1ae4d6e2ef4f 444b1ae4d6e2ef50 3eb0c6f7a0b5ed8c 3eb0c6f7a0b5ed8d 41b3de4355555553 41b3de4355555554 41b3de4355555555
41b3de4355555556 41b3de4355555557 becbf647612f3696 43143ff3c1cb0959`.split(/\s+/);
for (let i = 0; bits.length < 324; i++) {
  const hex = crypto.createHash("sha256").update("double " + i).digest("hex").slice(0, 16);
  if (Number.isFinite(Buffer.from(hex, "hex").readDoubleBE())) bits.push(hex);
}
const numbers = bits.map((ieee) => JSON.stringify({ ieee, text: JSON.stringify(Buffer.from(ieee, "hex").readDoubleBE()) }));
fs.writeFileSync(new URL("trust_numbers.jsonl", folder), numbers.join("\n") + "\n");

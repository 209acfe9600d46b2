// Session files: a snapshot of a sequence, with what a session needs beside it.
//
// Format 2, little-endian: the magic "KVASIRS2", then blocks of {tag u32, zero u32, length u64, bytes, XXH3-128 of all
// of that}. HEAD says what the file is of; STAT holds page tables, policy, counters, newest tokens, logits, chat and
// sampler; PAGE, once per column of a table, its pages in their physical layout; DONE ends the file.
// Everything is checked before anything is used, and the tables and the policy must agree: a file is restored whole or
// refused.
//
// Thread-safety: one caller at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "chat/chat_transcript.h"
#include "engine/sequence.h"
#include "generation/sampler.h"
#include "kvasir/status.h"

namespace kvasir {

// What a session keeps beside its sequence.
struct SessionExtras {
  std::vector<TokenId> newest;  // tokens of the context, the newest last
  std::vector<float> logits;    // [vocabulary] of the newest token, or empty
  ChatState chat;
  std::optional<SamplerState> sampler;  // of the last generation
};

struct SessionHead {
  Hash128 fingerprint;     // of the model: see LoadedModel::fingerprint
  std::string arithmetic;  // kernel table, version of its bits, page slots, entries per partial
  std::string policy;
  std::string kv_type;
  int page_slots = 0;
  int chunk = 0;  // of prompts, as the engine was told; 0: the policy's own
};

// Writes the file whole or not at all: until it is complete, what stood at `path` stays. REQUIRES: !in_chunk(). Errors:
// kInvalidArgument, kResourceExhausted (a full disk) with the system's reason; Sequence::status.
Status save_session(const std::string& path, const Sequence& sequence, int chunk, const SessionExtras& extras);

struct LoadedSession {
  SessionHead head;
  std::unique_ptr<Sequence> sequence;
  SessionExtras extras;
  bool other_arithmetic = false;  // later tokens may differ from those of the session that was saved
};

// Makes the cache for a session of a file, given its head and its policy as it stands at its start.
using SessionCacheMaker =
    std::function<Result<std::shared_ptr<KvCache>>(const SessionHead& head, const RetentionPolicy& policy)>;

// Errors: kNotFound, kDataLoss for a file that is cut off, damaged or not one (with the reason), kInvalidArgument for
// one of another model, kUnsupported for another format, kResourceExhausted.
Result<LoadedSession> load_session(const std::string& path, const std::shared_ptr<LoadedModel>& model,
                                   const SessionCacheMaker& make_cache);

// The same of a file's bytes. For tests and fuzzing.
Result<LoadedSession> parse_session(std::span<const std::byte> bytes, const std::shared_ptr<LoadedModel>& model,
                                    const SessionCacheMaker& make_cache);

}  // namespace kvasir

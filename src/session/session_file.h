// Session files: a snapshot of a sequence, and the session's other data.
//
// Format 2, little-endian: the magic "KVASIRS2", then blocks of {tag u32, zero u32, length u64, bytes, XXH3-128 of all
// of that}. HEAD names the model, adapters, policy and formats; STAT holds page tables, policy, counters, newest
// tokens, logits, chat and sampler; PAGE, once per column of a table, its pages in their physical layout; LAYR, where
// layers hold states, all of these; DONE ends the file. Everything is checked before anything is used, and the tables
// and the policy must agree: a file is restored whole or refused.
//
// Thread-safety: one caller at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mapped_file.h"
#include "chat/chat_transcript.h"
#include "generation/sampler.h"
#include "kvasir/status.h"
#include "retention/policy_spec.h"
#include "sequence/sequence.h"

namespace kvasir {

// A session's data besides its sequence.
struct SessionExtras {
  std::vector<TokenId> newest;  // tokens of the context, the newest last
  std::vector<float> logits;    // [vocabulary] of the newest token, or empty
  ChatState chat;
  std::optional<SamplerState> sampler;  // of the last generation
};

// An adapter that a session runs with.
struct SessionAdapter {
  Hash128 fingerprint;  // Adapter::fingerprint
  float scale = 1;
  std::string name;
};

struct SessionHead {
  Hash128 fingerprint;     // of the model: see LoadedModel::fingerprint
  std::string arithmetic;  // as LoadedModel::arithmetic_id
  std::string policy;      // as written in the file
  std::string kv_type;     // as codec_name; in the file as stored_codec_name
  int page_slots = 0;
  int chunk = 0;                              // of prompts, as set for the engine; 0: the policy's own
  std::vector<SessionAdapter> adapters = {};  // in the order in which they add
};

// Writes the file whole or not at all: an existing file at `path` stays until then. REQUIRES: !in_chunk(). Errors:
// kInvalidArgument, kResourceExhausted (a full disk) with the system's reason; Sequence::status.
Status save_session(const std::string& path, const Sequence& sequence, int chunk, const SessionExtras& extras);

struct LoadedSession {
  SessionHead head;
  std::unique_ptr<Sequence> sequence;
  SessionExtras extras;
  bool other_arithmetic = false;  // later tokens may differ from the saved session's
};

// The parts of a session file: views of its bytes, with checksums, model, adapters, policy and chunk checked.
struct SessionParts {
  SessionHead head;
  std::vector<AppliedAdapter> adapters;  // of the model
  PolicySpec policy;
  std::span<const std::byte> state;
  std::vector<std::span<const std::byte>> pages;
  std::span<const std::byte> layer_states;
};

// Errors: as load_session.
Result<SessionParts> read_parts(std::span<const std::byte> bytes, const LoadedModel& model);

// Makes the session, without the content of its pages (see SessionPages), in a cache that allows the file's codec and
// has its page slots. The cache may have no store. Errors: kDataLoss, kResourceExhausted; kUnsupported for encoded
// pages or layers' states of another layout.
Result<LoadedSession> restore_session(const SessionParts& parts, const std::shared_ptr<LoadedModel>& model,
                                      const std::shared_ptr<KvCache>& cache);

// Copies a restored session's pages and layers' states from the file. The sequence must not run before done().
class SessionPages {
 public:
  SessionPages() = default;  // nothing to do
  // `parts`: those that the sequence was restored from; they must outlive this object. REQUIRES: the sequence's cache
  // has a store.
  SessionPages(const SessionParts& parts, Sequence& sequence);

  bool done() const { return next_ == columns_.size() && states_.empty(); }
  // Copies about this many bytes. REQUIRES: the sequence lives, and nobody else uses it.
  void fill(std::uint64_t bytes);

 private:
  const PagePool* pool_ = nullptr;
  std::span<const std::span<const std::byte>> columns_;
  std::vector<PageId> ids_;            // of all columns
  std::size_t next_ = 0;               // column
  std::size_t page_ = 0;               // index in ids_
  std::span<const std::byte> states_;  // those left to copy
  std::byte* states_to_ = nullptr;
};

// A checked session file. Its bytes stay in the file and take no memory of the process.
struct SessionImage {
  MappedFile file;
  SessionParts parts;
};

// Errors: as load_session. Any thread may call it.
Result<std::shared_ptr<const SessionImage>> open_image(const std::string& path, const LoadedModel& model);

// Makes the cache for a session file, given its head and its policy in the initial state.
using SessionCacheMaker =
    std::function<Result<std::shared_ptr<KvCache>>(const SessionHead& head, const RetentionPolicy& policy)>;

// Errors: kNotFound, kDataLoss for a file that is truncated, damaged or not a session (with the reason),
// kInvalidArgument for one of another model or with adapters that are not loaded, kUnsupported for another format,
// kResourceExhausted.
Result<LoadedSession> load_session(const std::string& path, const std::shared_ptr<LoadedModel>& model,
                                   const SessionCacheMaker& make_cache);

// As load_session, for a file's bytes. For tests and fuzzing.
Result<LoadedSession> parse_session(std::span<const std::byte> bytes, const std::shared_ptr<LoadedModel>& model,
                                    const SessionCacheMaker& make_cache);

}  // namespace kvasir

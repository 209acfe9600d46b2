#include "session/session_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/atomic_file.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status.h"
#include "retention/registry.h"
#include "sequence/sequence_state.h"

namespace kvasir {
namespace {

constexpr char kMagic[] = "KVASIRS2";
constexpr std::size_t kMagicBytes = 8;

constexpr std::uint32_t tag(const char (&name)[5]) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(name[i])) << (8 * i);
  return value;
}
constexpr std::uint32_t kHead = tag("HEAD");
constexpr std::uint32_t kState = tag("STAT");
constexpr std::uint32_t kPages = tag("PAGE");
constexpr std::uint32_t kLayerStates = tag("LAYR");
constexpr std::uint32_t kDone = tag("DONE");
constexpr std::size_t kBlockHeader = 16;
constexpr std::size_t kHashBytes = 16;
constexpr std::uint64_t kMostText = std::uint64_t{1} << 32;
constexpr std::size_t kMostAdapterName = 1024;
constexpr std::size_t kLeastAdapterBytes = 28;  // with an empty name

Status damaged(std::string_view what) {
  return data_loss("the session file is damaged: {}; restore it from a copy, or start anew", what);
}

// -- Writing. --

class BlockWriter {
 public:
  explicit BlockWriter(AtomicFile* file) : file_(*file) {}

  Status magic() { return file_.write(std::as_bytes(std::span(kMagic, kMagicBytes))); }
  Status block(std::uint32_t tag, std::span<const std::byte> bytes) {
    std::vector<std::byte> header;
    ByteWriter out(&header);
    out.put(tag);
    out.put(std::uint32_t{0});
    out.put(static_cast<std::uint64_t>(bytes.size()));
    Hasher hasher;
    hasher.add(header);
    hasher.add(bytes);
    KVASIR_RETURN_IF_ERROR(file_.write(header));
    KVASIR_RETURN_IF_ERROR(file_.write(bytes));
    const Hash128 hash = hasher.digest();
    const std::uint64_t words[] = {hash.low, hash.high};
    return file_.write(std::as_bytes(std::span(words)));
  }

 private:
  AtomicFile& file_;
};

void put_head(ByteWriter& out, const SessionHead& head) {
  out.put(head.fingerprint.low);
  out.put(head.fingerprint.high);
  out.put_string(head.arithmetic);
  out.put_string(head.policy);
  out.put_string(head.kv_type);
  out.put(static_cast<std::int32_t>(head.page_slots));
  out.put(static_cast<std::int32_t>(head.chunk));
  // At the end, so that files without adapters equal those of older versions.
  if (head.adapters.empty()) return;
  out.put(static_cast<std::uint64_t>(head.adapters.size()));
  for (const SessionAdapter& adapter : head.adapters) {
    out.put(adapter.fingerprint.low);
    out.put(adapter.fingerprint.high);
    out.put(adapter.scale);
    out.put_string(adapter.name);
  }
}

// Options that sampling had not in the first files of this format.
constexpr float SamplingOptions::*kTruncation[] = {
    &SamplingOptions::top_n_sigma,   &SamplingOptions::typical_p,      &SamplingOptions::xtc_probability,
    &SamplingOptions::xtc_threshold, &SamplingOptions::dynatemp_range, &SamplingOptions::dynatemp_exponent};

bool same_truncation(const SamplingOptions& a, const SamplingOptions& b) {
  return std::ranges::all_of(kTruncation, [&](auto option) { return a.*option == b.*option; });
}

void put_sampler(ByteWriter& out, const SamplerState& state) {
  const SamplingOptions& o = state.options;
  for (const float value :
       {o.temperature, o.top_p, o.min_p, o.repetition_penalty, o.frequency_penalty, o.presence_penalty})
    out.put(value);
  out.put(static_cast<std::int32_t>(o.top_k));
  out.put(static_cast<std::int32_t>(o.penalty_window));
  out.put(o.seed);
  for (const std::uint64_t word : state.random) out.put(word);
  out.put_vector(state.recent);
  out.put(o.dry_multiplier);
  out.put(o.dry_base);
  out.put(static_cast<std::int32_t>(o.dry_allowed_length));
  out.put(static_cast<std::int32_t>(o.dry_window));
  out.put_vector(state.dry);
  // At the end, so that files without these options equal those of older versions.
  const bool truncates = !same_truncation(o, SamplingOptions());
  if (o.logit_bias.empty() && !truncates) return;
  out.put(static_cast<std::uint64_t>(o.logit_bias.size()));
  for (const auto& [token, bias] : o.logit_bias) {
    out.put(token);
    out.put(bias);
  }
  if (!truncates) return;
  for (const auto option : kTruncation) out.put(o.*option);
}

void put_chat(ByteWriter& out, const ChatState& chat) {
  out.put(static_cast<std::uint64_t>(chat.messages.size()));
  for (const ChatMessage& message : chat.messages) {
    out.put_string(message.role);
    out.put_string(message.content);
  }
  out.put(chat.started);
  out.put(static_cast<std::int32_t>(chat.ending.kind));
  out.put(chat.ending.token);
  out.put_string(chat.ending.stop);
}

// -- Reading. --

class BlockReader {
 public:
  explicit BlockReader(std::span<const std::byte> bytes) : left_(bytes) {}

  // Returns the bytes of the next block, which must have this tag. Errors: kDataLoss.
  Result<std::span<const std::byte>> block(std::uint32_t tag) {
    if (left_.size() < kBlockHeader + kHashBytes) return damaged("it ends in the middle");
    ByteReader header(left_);
    std::uint32_t found = 0, zero = 0;
    std::uint64_t length = 0;
    header.get(found);
    header.get(zero);
    header.get(length);
    if (length > left_.size() - kBlockHeader - kHashBytes) return damaged("it ends in the middle");
    const auto size = static_cast<std::size_t>(length);
    Hasher hasher;
    hasher.add(left_.first(kBlockHeader + size));
    const Hash128 hash = hasher.digest();
    std::uint64_t words[2];
    std::memcpy(words, left_.data() + kBlockHeader + size, sizeof words);
    if (words[0] != hash.low || words[1] != hash.high) return damaged("a checksum is wrong");
    if (found != tag || zero != 0) return damaged("its parts are not in order");
    const std::span<const std::byte> bytes = left_.subspan(kBlockHeader, size);
    left_ = left_.subspan(kBlockHeader + size + kHashBytes);
    return bytes;
  }
  std::size_t left() const { return left_.size(); }
  bool next_is(std::uint32_t tag) const {
    return left_.size() >= sizeof tag && std::memcmp(left_.data(), &tag, sizeof tag) == 0;
  }

 private:
  std::span<const std::byte> left_;
};

bool get_head(ByteReader& in, SessionHead* head) {
  std::int32_t slots = 0, chunk = 0;
  in.get(head->fingerprint.low);
  in.get(head->fingerprint.high);
  in.get_string(head->arithmetic, 1024);
  in.get_string(head->policy, 4096);
  in.get_string(head->kv_type, 64);
  in.get(slots);
  in.get(chunk);
  head->page_slots = slots;
  head->chunk = chunk;
  std::uint64_t adapters = 0;
  if (in.left() > 0 && !in.get_count(adapters, kMostAdapters, kLeastAdapterBytes)) return false;
  for (std::uint64_t i = 0; i < adapters; ++i) {
    SessionAdapter& adapter = head->adapters.emplace_back();
    in.get(adapter.fingerprint.low);
    in.get(adapter.fingerprint.high);
    in.get(adapter.scale);
    in.get_string(adapter.name, kMostAdapterName);
    if (!std::isfinite(adapter.scale) || adapter.scale == 0) return false;
  }
  return in.ok() && in.left() == 0;
}

// The loaded adapters that are those of a file, in the file's order. Errors: kInvalidArgument.
Result<std::vector<AppliedAdapter>> find_adapters(std::span<const SessionAdapter> wanted,
                                                  std::span<const Adapter> loaded) {
  std::vector<AppliedAdapter> found;
  for (const SessionAdapter& adapter : wanted) {
    const auto same = std::ranges::find(loaded, adapter.fingerprint, &Adapter::fingerprint);
    if (same == loaded.end())
      return invalid_argument(
                 "the session runs with the adapter '{}' (fingerprint {}), which is not loaded; load it too",
                 adapter.name, adapter.fingerprint.hex())
          .about({"lora"});
    found.push_back({static_cast<int>(same - loaded.begin()), adapter.scale});
  }
  return found;
}

std::vector<SessionAdapter> saved_adapters(const Sequence& sequence) {
  std::vector<SessionAdapter> saved;
  for (const AppliedAdapter& applied : sequence.adapters()) {
    const Adapter& adapter = sequence.model()->adapters[static_cast<std::size_t>(applied.number)];
    saved.push_back({adapter.fingerprint, applied.scale, adapter.name.substr(0, kMostAdapterName)});
  }
  return saved;
}

bool get_sampler(ByteReader& in, SamplerState* state) {
  SamplingOptions& o = state->options;
  for (float* value :
       {&o.temperature, &o.top_p, &o.min_p, &o.repetition_penalty, &o.frequency_penalty, &o.presence_penalty})
    in.get(*value);
  std::int32_t top_k = 0, window = 0;
  in.get(top_k);
  in.get(window);
  o.top_k = top_k;
  o.penalty_window = window;
  in.get(o.seed);
  for (std::uint64_t& word : state->random) in.get(word);
  std::int32_t dry_length = 0, dry_window = 0;
  if (!in.get_vector(state->recent, kMaxPenaltyWindow)) return false;
  in.get(o.dry_multiplier);
  in.get(o.dry_base);
  in.get(dry_length);
  in.get(dry_window);
  o.dry_allowed_length = dry_length;
  o.dry_window = dry_window;
  if (!in.get_vector(state->dry, kMaxPenaltyWindow)) return false;
  std::uint64_t biases = 0;
  if (in.left() > 0 && !in.get_count(biases, kMostBiases, 8)) return false;
  for (std::uint64_t i = 0; i < biases; ++i) {
    auto& [token, bias] = o.logit_bias.emplace_back();
    in.get(token);
    in.get(bias);
  }
  if (in.left() > 0)
    for (const auto option : kTruncation) in.get(o.*option);
  return in.ok();
}

bool get_chat(ByteReader& in, ChatState* chat) {
  std::uint64_t messages = 0;
  if (!in.get_count(messages, kMostText, 16)) return false;
  for (std::uint64_t i = 0; i < messages; ++i) {
    ChatMessage message;
    if (!in.get_string(message.role, 256) || !in.get_string(message.content, kMostText)) return false;
    chat->messages.push_back(std::move(message));
  }
  std::int32_t kind = 0;
  in.get(chat->started);
  in.get(kind);
  in.get(chat->ending.token);
  in.get_string(chat->ending.stop, 4096);
  if (kind < 0 || kind > static_cast<std::int32_t>(ChatEnding::Kind::kStop)) return false;
  chat->ending.kind = static_cast<ChatEnding::Kind>(kind);
  return in.ok();
}

bool are_token_ids(std::span<const TokenId> tokens, int vocabulary) {
  return std::ranges::all_of(tokens, [&](TokenId token) { return token >= 0 && token < vocabulary; });
}

Status restore_state(std::span<const std::byte> bytes, const LoadedModel& model, LoadedSession* session) {
  ByteReader in(bytes);
  Sequence& sequence = *session->sequence;
  KVASIR_RETURN_IF_ERROR(read_sequence(in, &sequence));
  SessionExtras& extras = session->extras;
  bool sampler = false;
  if (!in.get_vector(extras.newest) || !in.get_vector(extras.logits) || !get_chat(in, &extras.chat) || !in.get(sampler))
    return damaged("its state cannot be read");
  if (sampler && !get_sampler(in, &extras.sampler.emplace())) return damaged("its sampler cannot be read");
  if (in.left() != 0 || !in.ok()) return damaged("its state is longer than it should be");
  const auto vocabulary = static_cast<std::size_t>(model.config.vocabulary);
  if (!are_token_ids(extras.newest, model.config.vocabulary) ||
      !(extras.logits.empty() || extras.logits.size() == vocabulary) ||
      !std::ranges::all_of(extras.logits, [](float logit) { return std::isfinite(logit); }))
    return damaged("its tokens or logits are not the model's");
  if (!policy_agrees(sequence)) return damaged("its policy and its page tables contradict each other");
  return {};
}

}  // namespace

Status save_session(const std::string& path, const Sequence& sequence, int chunk, const SessionExtras& extras) {
  KVASIR_RETURN_IF_ERROR(sequence.status());
  const LoadedModel& model = *sequence.model();
  const PageFormat& format = sequence.shape().page;
  KVASIR_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  BlockWriter writer(&file);
  KVASIR_RETURN_IF_ERROR(writer.magic());
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  put_head(out, {model.fingerprint, model.arithmetic_id(format, !sequence.adapters().empty()),
                 sequence.policy().traits().spec, stored_codec_name(sequence.shape().codec()), format.slots, chunk,
                 saved_adapters(sequence)});
  KVASIR_RETURN_IF_ERROR(writer.block(kHead, bytes));
  bytes.clear();
  write_sequence(sequence, out);
  out.put_vector(extras.newest);
  out.put_vector(extras.logits);
  put_chat(out, extras.chat);
  out.put(extras.sampler.has_value());
  if (extras.sampler) put_sampler(out, *extras.sampler);
  KVASIR_RETURN_IF_ERROR(writer.block(kState, bytes));
  const PagePool& pool = sequence.cache()->pool();
  for (int t = 0; t < sequence.tables().tables(); ++t) {
    const PageTable& table = sequence.tables().table(t);
    for (const std::uint32_t column : table.columns().in_order()) {
      const std::span<const PageId> pages = table.pages().of(column);
      const std::size_t page_bytes = pool.format(page_class(pages.front())).bytes();
      bytes.resize(pages.size() * page_bytes);
      for (std::size_t p = 0; p < pages.size(); ++p) {
        KVASIR_CHECK(pool.place(pages[p]) == PagePlace::kMemory);
        pool.store()->read(pages[p], std::span(bytes).subspan(p * page_bytes, page_bytes));
      }
      KVASIR_RETURN_IF_ERROR(writer.block(kPages, bytes));
    }
  }
  if (const auto states = sequence.tables().states().memory(); !states.empty())
    KVASIR_RETURN_IF_ERROR(writer.block(kLayerStates, states));
  KVASIR_RETURN_IF_ERROR(writer.block(kDone, {}));
  return file.commit();
}

Result<SessionParts> read_parts(std::span<const std::byte> bytes, const LoadedModel& model) {
  if (bytes.size() < kMagicBytes || std::memcmp(bytes.data(), kMagic, kMagicBytes - 1) != 0)
    return data_loss("this is not a session file of Kvasir; give a file that a session was saved to");
  if (std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0)
    return unsupported("the session file is of another format; use the version of Kvasir that wrote it");
  BlockReader reader(bytes.subspan(kMagicBytes));
  SessionParts parts;
  KVASIR_ASSIGN_OR_RETURN(const std::span<const std::byte> head, reader.block(kHead));
  ByteReader in(head);
  if (!get_head(in, &parts.head)) return damaged("its head cannot be read");
  const ParsedCodec codec = parse_stored_codec(parts.head.kv_type);
  if (!codec.error.empty()) return damaged("its page type is none");
  parts.head.kv_type = codec_name(codec.codec);
  KVASIR_ASSIGN_OR_RETURN(parts.state, reader.block(kState));
  // Checks all checksums before any block is used.
  while (reader.left() > kBlockHeader + kHashBytes && !reader.next_is(kLayerStates)) {
    KVASIR_ASSIGN_OR_RETURN(parts.pages.emplace_back(), reader.block(kPages));
  }
  if (reader.next_is(kLayerStates)) {
    KVASIR_ASSIGN_OR_RETURN(parts.layer_states, reader.block(kLayerStates));
  }
  KVASIR_RETURN_IF_ERROR(reader.block(kDone).status());
  if (reader.left() != 0) return damaged("its parts are not in order");
  if (parts.head.fingerprint != model.fingerprint)
    return invalid_argument("the session file is of another model (fingerprint {}, this model's is {}); open that one",
                            parts.head.fingerprint.hex(), model.fingerprint.hex());
  KVASIR_ASSIGN_OR_RETURN(parts.adapters, find_adapters(parts.head.adapters, model.adapters));
  KVASIR_ASSIGN_OR_RETURN(PolicySpec policy, PolicySpec::parse(parts.head.policy));
  parts.policy = spec_of_file(std::move(policy));
  KVASIR_RETURN_IF_ERROR(make_policy(parts.policy).status());
  KVASIR_RETURN_IF_ERROR(check_chunk(parts.head.chunk));
  return parts;
}

Result<LoadedSession> restore_session(const SessionParts& parts, const std::shared_ptr<LoadedModel>& model,
                                      const std::shared_ptr<KvCache>& cache) {
  LoadedSession session;
  session.head = parts.head;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_policy(parts.policy));
  const std::vector<std::span<const std::byte>>& pages = parts.pages;
  const ParsedCodec codec = parse_codec(parts.head.kv_type);
  if (!codec.error.empty() || !cache->allows(codec.codec)) return damaged("its page type is not one of the cache's");
  const PageFormat format = cache->shape().with(codec.codec).page;
  const std::string own = model->arithmetic_id(format, !parts.adapters.empty());
  session.other_arithmetic = session.head.arithmetic != own;
  const auto mixers = [](std::string_view id) {
    return id.substr(std::min(id.find(LoadedModel::kStatesOfId), id.size()));
  };
  if (mixers(session.head.arithmetic) != mixers(own))
    return unsupported(
        "the session file has layers' states of another layout; use the version of Kvasir that wrote it");
  // The part behind the kernel table's name: the layout of encoded pages depends on it.
  const auto version = [](std::string_view id) { return id.substr(std::min(id.find('/'), id.size())); };
  if (format.encoded() && version(session.head.arithmetic) != version(own))
    return unsupported("the session file has encoded pages of another layout; use the version of Kvasir that wrote it");
  session.sequence = std::make_unique<Sequence>(model, cache, std::move(policy), codec.codec, parts.adapters);
  KVASIR_RETURN_IF_ERROR(restore_state(parts.state, *model, &session));
  std::size_t next = 0;
  bool fits = true;
  for (int t = 0; t < session.sequence->tables().tables(); ++t) {
    const PageTable& table = session.sequence->tables().table(t);
    for (const std::uint32_t column : table.columns().in_order()) {
      const std::span<const PageId> ids = table.pages().of(column);
      fits = fits && next < pages.size() &&
             pages[next].size() == ids.size() * cache->pool().format(page_class(ids.front())).bytes();
      ++next;
    }
  }
  if (!fits || next != pages.size()) return damaged("its pages are not those of its tables");
  if (parts.layer_states.size() != session.sequence->tables().states().bytes())
    return damaged("its states are not those of the model's layers");
  return session;
}

SessionPages::SessionPages(const SessionParts& parts, Sequence& sequence)
    : pool_(&sequence.cache()->pool()),
      columns_(parts.pages),
      ids_(pages_in_order(sequence)),
      states_(parts.layer_states),
      states_to_(sequence.mutable_tables().states().memory().data()) {}

void SessionPages::fill(std::uint64_t bytes) {
  std::uint64_t copied = 0;
  for (; next_ < columns_.size() && copied < bytes; ++next_) {
    std::span<const std::byte> left = columns_[next_];
    copied += left.size();
    while (!left.empty()) {
      const PageId page = ids_[page_++];
      const std::size_t bytes_of_page = pool_->format(page_class(page)).bytes();
      pool_->store()->write(page, left.first(bytes_of_page));
      left = left.subspan(bytes_of_page);
    }
  }
  const auto states = states_.first(std::min<std::uint64_t>(states_.size(), bytes - std::min(bytes, copied)));
  states_to_ = std::ranges::copy(states, states_to_).out;
  states_ = states_.subspan(states.size());
}

Result<LoadedSession> parse_session(std::span<const std::byte> bytes, const std::shared_ptr<LoadedModel>& model,
                                    const SessionCacheMaker& make_cache) {
  KVASIR_ASSIGN_OR_RETURN(const SessionParts parts, read_parts(bytes, *model));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(parts.policy));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, make_cache(parts.head, *policy));
  KVASIR_ASSIGN_OR_RETURN(LoadedSession session, restore_session(parts, model, cache));
  SessionPages(parts, *session.sequence).fill(bytes.size());
  return session;
}

Result<std::shared_ptr<const SessionImage>> open_image(const std::string& path, const LoadedModel& model) {
  KVASIR_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  KVASIR_ASSIGN_OR_RETURN(SessionParts parts, read_parts(file.bytes(), model));
  return std::make_shared<const SessionImage>(SessionImage{std::move(file), std::move(parts)});
}

Result<LoadedSession> load_session(const std::string& path, const std::shared_ptr<LoadedModel>& model,
                                   const SessionCacheMaker& make_cache) {
  KVASIR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse_session(file.bytes(), model, make_cache);
}

}  // namespace kvasir

// The result of a continuation, and what the KV cache holds of a text.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/finish_reason.h"
#include "kvasir/quality.h"
#include "kvasir/status.h"

namespace kvasir {

// The KV of one text: of a session, or of one sample of a request.
//
// Bytes are those of the pages that its page tables refer to, each page counted once and whole, shared or not, of the
// tables themselves, of the layers' states and of the policy's state. So the bytes of two forks add up to more than the
// cache holds: CacheReport counts a shared page once. A request that ends while others have its pages reports the bytes
// that it held before.
struct KvReport {
  // Layers with a sliding window of their own, which no policy governs. Bytes below cover all layers, all other figures
  // only the layers that the policy governs.
  struct WindowGroup {
    int layers = 0;
    std::int64_t window = 0;  // tokens that a token attends to, itself included
    std::int64_t kept = 0;    // tokens that have pages now
    std::uint64_t bytes = 0;  // of their pages
  };
  std::vector<WindowGroup> windows;
  // Layers that hold a state of fixed size in place of keys and values.
  struct StateGroup {
    int layers = 0;
    std::uint64_t bytes = 0;  // of their states
  };
  std::vector<StateGroup> states;
  std::string policy;     // canonical spec
  std::string codec;      // "f16"; "f16,rope=long" with the angles for long texts
  std::int64_t seen = 0;  // tokens read and generated so far
  // Tokens retained now that are not beyond the model's sliding window; mean over layers or heads that keep different
  // ones.
  std::int64_t kept = 0;
  std::int64_t kept_least = 0;  // in the layer or head that retains the fewest
  std::int64_t kept_most = 0;   // in the layer or head that retains the most
  std::int64_t kept_max = 0;    // most that a forward pass ever saw in any layer
  // Tokens that the newest generated token read, if its policy chooses (quest): mean over layers and KV heads. 0: all
  // kept.
  std::int64_t read = 0;
  std::int64_t repeated = 0;  // rows that repeated the text for its policy (kvzip) since the text began or was loaded
  bool demotes = false;  // dropped tokens are stored elsewhere (docs/policies/demotion.md)
  // Demoted tokens: number, mean over layers and KV heads; bytes in memory (part of `bytes`) and in the file; pages per
  // KV head that rows recalled so far, recalled pages read from the file, and the seconds waited for the file.
  std::int64_t demoted = 0;
  std::uint64_t demoted_bytes = 0;
  std::uint64_t demoted_file_bytes = 0;
  std::int64_t recalled = 0;
  std::int64_t fetched = 0;
  double recall_seconds = 0;
  bool offloads = false;  // KV heads that follow others leave memory (docs/policies/synckv.md)
  // Offloaded heads: bytes of keys and values in memory and in the file; the seconds waited for room to write.
  std::uint64_t hot_bytes = 0;
  std::uint64_t cold_bytes = 0;
  double write_wait_seconds = 0;
  // Fetches from the file so far: bytes; rounds, each for the heads of one layer that follow the same head; rounds that
  // the pass waited for, and the seconds waited; the seconds of fetching, including those hidden behind other work.
  struct Fetched {
    std::uint64_t bytes = 0;
    std::int64_t rounds = 0;
    std::int64_t stalls = 0;
    double stall_seconds = 0;
    double seconds = 0;
  };
  Fetched fetched_chosen;   // tokens that generated tokens chose
  Fetched fetched_prompts;  // all tokens, for rows that read everything
  double dead_share = 0;    // share of the written slots whose token was dropped and that are not reused yet
  // Mean number of times the codec encoded a retained token, over tokens in encoded pages; 0 without any. Above 1 where
  // pages were packed or rotated after tokens were dropped.
  double encodings_mean = 0;
  int encodings_max = 0;         // 255 means 255 or more
  std::uint64_t bytes = 0;       // now
  std::uint64_t bytes_peak = 0;  // most ever held; of a fork, since the fork
  std::uint64_t budget = 0;      // capacity of the whole cache
};

// The cache of an engine: all sessions and requests together. Zeros until the first of them makes it.
struct CacheReport {
  std::uint64_t bytes = 0;       // pages in use, each counted once, plus tables and policies' states
  std::uint64_t bytes_peak = 0;  // most ever held
  std::uint64_t budget = 0;      // capacity
};

// A tenant's requests that hold pages.
struct TenantReport {
  int tenant = 0;             // RequestOptions::tenant
  std::uint64_t bytes = 0;    // held by them; a page counts for each request that shares it
  std::uint64_t planned = 0;  // their peaks, as admission counts them
};

// Swapping of preempted requests' pages, since the engine was opened.
struct SwapReport {
  std::uint64_t capacity = 0;  // size limit of the file, bytes; 0: no file
  std::uint64_t used = 0;      // bytes of it in use
  std::uint64_t buffers = 0;   // bytes of memory between the file and the pages, outside the KV budget
  std::int64_t out = 0;        // preempted requests written whole
  std::int64_t in = 0;         // preempted requests restored from the file
  std::int64_t failed = 0;     // recomputed: a transfer failed, or there was no memory for the saved state
  std::string why_failed;      // the newest failure
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  double out_rate = 0;  // bytes per second, as the cost of a preemption assumes
  double in_rate = 0;
  double longest_pause = 0;  // longest time between two passes spent on swapping, seconds
  std::string_view method;   // "io_uring" or "threads"
};

// A place outside memory that holds prefixes; counts since the engine was opened.
struct PrefixTierReport {
  std::string_view name;  // "disk", "redis"
  bool usable = false;    // it answers
  std::uint64_t parts = 0;
  std::uint64_t bytes = 0;
  std::uint64_t capacity = 0;  // bytes; 0: unknown
  std::int64_t tokens_loaded = 0;
  std::int64_t loads = 0;  // parts read and used
  std::uint64_t bytes_loaded = 0;
  std::int64_t stores = 0;  // parts written
  std::uint64_t bytes_stored = 0;
  std::int64_t failures = 0;   // failed reads, writes and queries, damaged parts included
  std::int64_t skipped = 0;    // requests whose tokens were faster computed than read
  std::int64_t abandoned = 0;  // requests that waited too long and computed their tokens
  double rate = 0;             // bytes per second, measured on reads
  double latency = 0;          // seconds
};

// Pages of one form: the codec's for encoded pages, 16 bits for pages still being filled.
struct KvPageReport {
  std::string form;             // "f16", "q8"
  std::uint64_t pages = 0;      // in use
  std::uint64_t bytes = 0;      // charged for them
  std::uint64_t allocated = 0;  // including free pages whose memory is kept for this form
};

// The engine as of the newest pass, with counts since it was opened.
struct EngineReport {
  CacheReport cache;
  std::uint64_t request_bytes = 0;    // part of `cache` held by requests, each shared page once
  std::uint64_t prefix_bytes = 0;     // part of `cache` held only by the prefix cache, its tables included
  std::uint64_t draft_bytes = 0;      // part of `cache` held by the draft model for texts
  std::vector<TenantReport> tenants;  // those whose requests hold pages, by number
  std::vector<KvPageReport> pages;
  std::vector<std::string> codecs;       // available to requests, the default first
  std::uint64_t page_bytes = 0;          // charged for one page of the default codec
  std::uint64_t adapter_bytes = 0;       // allocated for LoRA adapters, outside the KV budget
  std::uint64_t draft_weight_bytes = 0;  // allocated for the weights of the draft model, outside the KV budget
  int page_slots = 0;                    // tokens per page
  int lanes = 0;                         // pages per column, over all layers and heads
  std::int64_t passes = 0;               // forward passes for requests
  std::int64_t mixed_passes = 0;         // those that read prompts and generated
  std::int64_t mixed_prompt_rows = 0;    // prompt tokens read in mixed passes; SchedulerOptions::max_itl bounds them
  std::int64_t running = 0;              // requests that hold pages
  std::int64_t waiting = 0;              // requests that hold none
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;  // read or taken from the prefix cache
  std::int64_t generated_tokens = 0;
  std::int64_t drafted_tokens = 0;     // run as drafts (GenerateOptions::draft)
  std::int64_t drafts_come_true = 0;   // of these, those that became tokens of a text
  std::int64_t recomputed_tokens = 0;  // run again after preemptions
  std::int64_t shadow_tokens = 0;      // read to compare policies with the full cache (RequestOptions::quality)
  std::int64_t prefix_queries = 0;     // prompt tokens of requests that queried the prefix cache
  std::int64_t prefix_hits = 0;        // those found in it
  std::int64_t evicted_tokens = 0;     // tokens dropped by policies, averaged over layers, of requests that ended
  SwapReport swap;
  std::vector<PrefixTierReport> prefix_tiers;  // nearest first
  std::uint64_t prefix_buffers = 0;            // bytes of memory between these and the pages, outside the KV budget
};

// A token that was generated, or a candidate in its place. Log-probabilities are the model's own: the log-softmax of
// its raw logits, before penalties, truncation and temperature.
struct TokenChoice {
  std::int32_t id = 0;
  std::string bytes;  // possibly part of a character; a control token's name
  double log_probability = 0;
  std::int64_t rank = 0;  // 1 for the likeliest token; the token itself: the number of tokens at least as likely
};

// Returns the bytes of a token if they are valid UTF-8; else names them as OpenAI's API does, "bytes:\\xf0\\x9f", so
// that different bytes have different names.
std::string token_name(std::string_view bytes);

struct GeneratedToken {
  TokenChoice token;
  std::vector<TokenChoice> likeliest;  // likeliest first
  bool hidden = false;                 // a control token, which the text does not show
};

// With GenerateOptions::draft.
struct DraftReport {
  std::int64_t drafted = 0;    // tokens that ran as drafts
  std::int64_t came_true = 0;  // of these, those that became tokens of the text
  std::string refused;         // why there were none; empty: they were possible
};

struct GenerateResult {
  std::string text;                 // all of it
  std::int64_t prompt_tokens = 0;   // session: read since the last generate(); request: its prompt
  std::int64_t tokens = 0;          // generated
  std::int64_t thought_tokens = 0;  // of these, in thoughts: see GenerateOptions::thoughts
  double prompt_seconds = 0;        // request: from submit() until its prompt was read, waiting included
  double seconds = 0;               // of generation; request: from its last prompt token to its end, waiting included
  FinishReason finish_reason = FinishReason::kEnd;
  std::string stopped_by;  // kStop: the stop string, one of the options or of the chat template
  std::uint64_t seed = 0;  // used by the sampler
  // With GenerateOptions::logprobs: one for each generated token, those of the stop string that ended the text
  // included. Grows with the text.
  std::vector<GeneratedToken> choices;
  // With logprobs: the token that ended the text, which is not in it: with kEnd, and with kStop by a stop token.
  std::optional<GeneratedToken> end_choice;
  std::optional<std::int32_t> stop_token;  // with kStop: the one of GenerateOptions::stop_tokens that ended the text
  // With GenerateOptions::prompt_logprobs: one for each prompt token but the first.
  std::vector<GeneratedToken> prompt_choices;
  KvReport kv;
  std::vector<float> embedding;  // with RequestOptions::pooling: [ModelSummary::width], not normalised
  // Only for requests:
  std::int64_t cached = 0;  // prompt tokens from the prefix cache
  // "pages" (exact), "snapshot" (the state of a policy), "disk" or "redis" (exact pages fetched for this request), or
  // empty.
  std::string cached_from;
  std::string cache_miss;                // why no more tokens came from the cache; empty if all possible tokens did
  std::int64_t preemptions = 0;          // times that it was preempted
  std::int64_t recomputed = 0;           // tokens recomputed after preemptions
  double queue_seconds = 0;              // part of prompt_seconds: until its first pass
  std::optional<QualityReport> quality;  // with RequestOptions::quality
  std::optional<DraftReport> draft;      // with GenerateOptions::draft
  Status status;                         // kFailed: why, kDataLoss (the model's output is NaN); otherwise ok
};

}  // namespace kvasir

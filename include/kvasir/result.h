// What a continuation gave, and what the KV cache holds of a text.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/finish_reason.h"
#include "kvasir/status.h"

namespace kvasir {

// The KV of one text: of a session, or of one sample of a request.
//
// Bytes are those of the pages that its page tables refer to, each page counted once and whole, shared or not, of the
// tables themselves, of the layers' states and of the policy's state. So the bytes of two forks add up to more than the
// cache holds: CacheReport counts a shared page once. A request that ends while others have its pages reports what it
// held before.
struct KvReport {
  // Layers that keep a window of their own, whatever the policy, beside layers that see all tokens. The figures below
  // are those of the layers that the policy governs, but for bytes, which are those of all.
  struct WindowGroup {
    int layers = 0;
    std::int64_t window = 0;  // tokens that a token sees, itself included
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
  std::string codec;      // "f16"
  std::int64_t seen = 0;  // tokens that entered
  // Tokens retained now that are not beyond the model's sliding window; where layers or heads keep different ones,
  // their mean.
  std::int64_t kept = 0;
  std::int64_t kept_least = 0;  // of the layer or head that retains the fewest
  std::int64_t kept_most = 0;   // and the most
  std::int64_t kept_max = 0;    // most that a forward pass saw, ever, in any layer
  // Tokens that the newest generated token read, if its policy chooses (quest): the mean over layers and KV heads. 0:
  // all that were kept.
  std::int64_t read = 0;
  bool demotes = false;  // what the policy drops is kept elsewhere
  // There: tokens, as the mean over layers and KV heads; their bytes in memory
  // (a part of `bytes`) and in the file; pages of a KV head that rows read again, so far, and of these those that had
  // to be fetched from the file; the seconds waited for the file.
  std::int64_t demoted = 0;
  std::uint64_t demoted_bytes = 0;
  std::uint64_t demoted_file_bytes = 0;
  std::int64_t recalled = 0;
  std::int64_t fetched = 0;
  double recall_seconds = 0;
  bool offloads = false;  // heads that follow others leave memory (docs/policies/synckv.md)
  // Of these heads: bytes of keys and values in memory and in the file; the seconds waited for room to write.
  std::uint64_t hot_bytes = 0;
  std::uint64_t cold_bytes = 0;
  double write_wait_seconds = 0;
  // What came back from the file so far: bytes; rounds, each of one layer's heads that follow one; those of them that
  // were waited for, and the seconds waited; the seconds that fetching took, behind other work or not.
  struct Fetched {
    std::uint64_t bytes = 0;
    std::int64_t rounds = 0;
    std::int64_t stalls = 0;
    double stall_seconds = 0;
    double seconds = 0;
  };
  Fetched fetched_chosen;   // tokens that generated ones chose
  Fetched fetched_prompts;  // all, for those that read everything
  double dead_share = 0;    // of the written slots, those whose token was dropped and that are not reused yet
  // How often the codec encoded a token that is retained, of those whose page is encoded; 0 where none are. More than
  // once: its page was packed with others, or rotated, when tokens were dropped.
  double encodings_mean = 0;
  int encodings_max = 0;         // 255 stands for more too
  std::uint64_t bytes = 0;       // now
  std::uint64_t bytes_peak = 0;  // most there ever were; of a fork, since it was made
  std::uint64_t budget = 0;      // of the cache that it shares with all sessions and requests: bytes there may be
};

// The cache of an engine: all sessions and requests together. Zeros until the first of them makes it.
struct CacheReport {
  std::uint64_t bytes = 0;       // pages in use, each counted once, tables and policies' states now
  std::uint64_t bytes_peak = 0;  // most there ever were
  std::uint64_t budget = 0;      // bytes there may be
};

// What the requests of a tenant that hold pages come to.
struct TenantReport {
  int tenant = 0;             // RequestOptions::tenant
  std::uint64_t bytes = 0;    // that they hold; a page that several requests share counts for each
  std::uint64_t planned = 0;  // their peaks, as admission counts them
};

// What swapping preempted requests' pages to a file and back came to since the engine was opened.
struct SwapReport {
  std::uint64_t capacity = 0;  // bytes of the file, at most; 0: there is none
  std::uint64_t used = 0;      // of these, in use
  std::uint64_t buffers = 0;   // bytes of memory between the file and the pages, beside the KV budget
  std::int64_t out = 0;        // preempted requests of which all pages were written
  std::int64_t in = 0;         // of these, restored from the file
  std::int64_t failed = 0;     // recomputed: a transfer failed, or there was no memory for the saved state
  std::string why_failed;      // of the newest of these
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  double out_rate = 0;  // bytes per second, as the cost of a preemption assumes
  double in_rate = 0;
  double longest_pause = 0;  // seconds that swapping took between two passes, at most
  std::string_view method;   // "io_uring" or "threads"
};

// A place outside memory that holds prefixes, and what it came to since the engine was opened.
struct PrefixTierReport {
  std::string_view name;  // "disk", "redis"
  bool usable = false;    // it answers
  std::uint64_t parts = 0;
  std::uint64_t bytes = 0;
  std::uint64_t capacity = 0;  // bytes; 0: unknown
  std::int64_t tokens_loaded = 0;
  std::int64_t loads = 0;  // parts that were read and used
  std::uint64_t bytes_loaded = 0;
  std::int64_t stores = 0;  // parts that were written
  std::uint64_t bytes_stored = 0;
  std::int64_t failures = 0;   // reads, writes and questions that failed, damaged parts included
  std::int64_t skipped = 0;    // requests whose tokens were faster computed than read
  std::int64_t abandoned = 0;  // requests that waited for so long that they computed them after all
  double rate = 0;             // bytes a second, as measured on reads
  double latency = 0;          // seconds
};

// The pages of one form. Encoded pages have the form of their codec, those that are still filled have 16 bits.
struct KvPageReport {
  std::string form;             // "f16", "q8"
  std::uint64_t pages = 0;      // in use
  std::uint64_t bytes = 0;      // charged for these
  std::uint64_t allocated = 0;  // with free pages that kept their memory for others of their form
};

// The engine as of the newest pass, and what it did since it was opened.
struct EngineReport {
  CacheReport cache;
  std::uint64_t request_bytes = 0;    // of `cache`, held by requests, each shared page once
  std::uint64_t prefix_bytes = 0;     // of `cache`, held by the prefix cache alone, its tables included
  std::vector<TenantReport> tenants;  // with requests that hold pages, by number
  // Bytes of the pages of each form, in use and in all that has memory, and who uses them: see KvPageReport.
  std::vector<KvPageReport> pages;
  std::vector<std::string> codecs;     // that requests may have, the default first
  std::uint64_t page_bytes = 0;        // what one page of the default codec is charged
  int page_slots = 0;                  // tokens per page
  int lanes = 0;                       // pages that a column of tokens takes, in all layers and heads
  std::int64_t passes = 0;             // forward passes for requests
  std::int64_t mixed_passes = 0;       // of these, those that read prompts and generated
  std::int64_t mixed_prompt_rows = 0;  // prompt tokens that those read; SchedulerOptions::max_itl bounds them
  std::int64_t running = 0;            // requests that hold pages
  std::int64_t waiting = 0;            // requests that hold none
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;  // read or taken from the prefix cache
  std::int64_t generated_tokens = 0;
  std::int64_t recomputed_tokens = 0;  // run again after preemptions
  std::int64_t prefix_queries = 0;     // prompt tokens of requests that asked the prefix cache
  std::int64_t prefix_hits = 0;        // of these, found there
  std::int64_t evicted_tokens = 0;     // that policies dropped, averaged over layers, of requests that ended
  SwapReport swap;
  std::vector<PrefixTierReport> prefix_tiers;  // from near to far
  std::uint64_t prefix_buffers = 0;            // bytes of memory between these and the pages, beside the KV budget
};

// A token that was, or might have been, generated at some place. Log-probabilities are those of the model itself: the
// log-softmax of its raw logits, before penalties, truncation and temperature.
struct TokenChoice {
  std::int32_t id = 0;
  std::string bytes;  // perhaps part of a character; a control token's name
  double log_probability = 0;
};

// Returns the bytes of a token if they are valid UTF-8. Part of a character is named as OpenAI's API does,
// "bytes:\\xf0\\x9f", so that different bytes have different names.
std::string token_name(std::string_view bytes);

struct GeneratedToken {
  TokenChoice token;
  std::vector<TokenChoice> likeliest;  // likeliest first
  bool hidden = false;                 // a control token, which the text does not show
};

struct GenerateResult {
  std::string text;                // all of it
  std::int64_t prompt_tokens = 0;  // of a session: read since the last generate(); of a request: of its prompt
  std::int64_t tokens = 0;         // generated
  double prompt_seconds = 0;       // of a request: from submit() until its prompt was read, waiting included
  double seconds = 0;              // of generation; of a request: from there to its end, waiting included
  FinishReason finish_reason = FinishReason::kEnd;
  std::uint64_t seed = 0;  // that the sampler used
  // With GenerateOptions::logprobs: one for each token generated, also of a stop string that the text ends before. They
  // grow with the tokens, as the text does.
  std::vector<GeneratedToken> choices;
  std::optional<GeneratedToken> end_choice;  // with logprobs and kEnd: of the end token, which is no part of the text
  // With GenerateOptions::prompt_logprobs: one for each token of the prompt but the first.
  std::vector<GeneratedToken> prompt_choices;
  KvReport kv;
  // Of a request.
  std::int64_t cached = 0;  // prompt tokens that came from the prefix cache
  // "pages" (exact), "snapshot" (what the policy had made of them); "disk" or "redis": exact pages that were fetched
  // from there for this request; or empty.
  std::string cached_from;
  std::string cache_miss;        // why no more of them did; empty if all did that could
  std::int64_t preemptions = 0;  // times that it gave up its pages
  std::int64_t recomputed = 0;   // tokens that it ran again for that
  double queue_seconds = 0;      // of prompt_seconds: until its first pass
  Status status;                 // kFailed: why, kDataLoss (the model's output is NaN); otherwise ok
};

}  // namespace kvasir

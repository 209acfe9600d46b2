// Options a caller may set. Every default works; the function that takes the options validates them.
// Thread-safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/pooling.h"

namespace kvasir {

class Grammar;

// Limits of the options below, for the command line and for clients alike.
inline constexpr int kMostSamples = 64;                                // samples of a request, and beams
inline constexpr int kMostLogprobs = 100;                              // likeliest tokens reported in place of each
inline constexpr std::int64_t kMostGenerated = std::int64_t{1} << 40;  // tokens
inline constexpr std::size_t kMostStops = 16;
inline constexpr std::size_t kLongestStop = 1024;  // bytes
inline constexpr std::size_t kMostStopTokens = 1024;
inline constexpr std::size_t kMostAllowedTokens = 65536;
inline constexpr std::size_t kMostBadWords = 128;
inline constexpr std::size_t kLongestBadWord = 256;  // bytes
inline constexpr std::size_t kMostBiases = 1024;     // tokens of logit_bias
inline constexpr int kMaxPenaltyWindow = 65536;      // tokens
inline constexpr std::size_t kMostAdapters = 64;
inline constexpr int kMostDryLength = 1024;  // tokens

struct SamplingOptions {
  float temperature = 0.8F;  // 0: greedy; up to 100
  int top_k = 40;            // keep the k largest logits; 0 or -1: all
  float top_p = 0.95F;       // keep the smallest set with this probability mass (0, 1]; 1: all
  float min_p = 0.05F;       // drop tokens less likely than min_p times the likeliest [0, 1]; 0: none
  // Further truncation; with temperature 0 none of it counts, as with the three above. In this order: top_n_sigma,
  // top_k, typical_p, top_p, min_p, XTC.
  float top_n_sigma = 0.0F;  // drop logits this many standard deviations below the largest (0, 100]; 0: none
  float typical_p = 1.0F;    // keep the tokens nearest to the entropy, with this probability mass (0, 1]; 1: all
  // XTC: with xtc_probability, of the tokens at least as likely as xtc_threshold all but the least likely are dropped.
  float xtc_probability = 0.0F;  // [0, 1]; 0: off
  float xtc_threshold = 0.1F;    // [0, 1]; above 0.5: off
  // Dynamic temperature: between temperature - range and temperature + range, by the entropy of the tokens left,
  // divided by the largest that so many could have, to the power of the exponent.
  float dynatemp_range = 0.0F;      // [0, 100]; 0: off
  float dynatemp_exponent = 1.0F;   // [0, 10]
  float repetition_penalty = 1.0F;  // logits of seen tokens divided (positive) or multiplied (negative) by it; (0, 10]
  float frequency_penalty = 0.0F;   // subtracted times the number of occurrences [-10, 10]
  float presence_penalty = 0.0F;    // subtracted once if seen [-10, 10]
  int penalty_window = 64;          // newest tokens of the context that count as seen; 0: no penalties
  // DRY: if the last n >= dry_allowed_length tokens of the context occurred before, the logit of the token that
  // followed them loses dry_multiplier * dry_base^(n - dry_allowed_length). Tokens with a line break, a quotation mark,
  // a colon or an asterisk are never lowered, and a repetition does not reach across them.
  float dry_multiplier = 0.0F;  // 0: off; [0, 100]
  float dry_base = 1.75F;       // [1, 10]
  int dry_allowed_length = 2;   // tokens that may be repeated freely; 1 to 1,024
  int dry_window = 4096;        // newest tokens of the context that are searched; 1 to 65,536
  std::uint64_t seed = 0;       // 0: the engine draws one and reports it
  // Token ids and the bias added to their logits, -100 to 100, before all penalties. At most 1,024, each id once.
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

// When a request may start; see SchedulerOptions::admission.
enum class Admission {
  kUse,      // KV usage plus the request's own peak stays below the stop mark
  kReserve,  // the peaks of all running requests fit the cache, so none is ever preempted for memory
};

// How requests share the cache and the passes. None of these changes a token.
struct SchedulerOptions {
  // Most seconds between two tokens of a request. Limits the prompt tokens of a pass to what the measured speed allows,
  // but to no less than a few. 0: no bound.
  double max_itl = 0;
  // Shares of the KV memory, above 0 and up to 1, preempt_mark at least stop_mark. A request starts while usage plus
  // its peak stay below the stop mark. Running requests grow up to the preempt mark; beyond it one of them is
  // preempted.
  double stop_mark = 0.90;
  double preempt_mark = 0.98;
  Admission admission = Admission::kUse;
  int max_running = 64;   // requests (each sample counts) that hold pages at a time, 1 or more
  int prompt_rows = 256;  // prompt tokens of all requests together in one pass, 1 to 4096
  // Number of equal shares of the memory below the stop mark, 1 or more. For a request without a limit of its own (no
  // max_tokens, or as many as the trained context leaves) Admission::kUse assumes a peak of at most one share.
  int side_by_side = 16;
};

// A LoRA adapter to load: a GGUF file that llama.cpp's convert_lora_to_gguf.py wrote for the model.
struct AdapterFile {
  std::string path;
  float scale = 1;  // of texts that do not choose; 0: they run without it
};

// An adapter that a text runs with.
struct AdapterScale {
  int id = 0;             // its place in EngineOptions::lora
  float scale = 1;        // 0: without it
  std::string name = {};  // in place of `id`, unless empty: AdapterSummary::name
};

// Options of an Engine: one model, one KV pool, one set of threads.
struct EngineOptions {
  std::string model;  // path of a GGUF file, or of any part of a split one
  // LoRA adapters, at most kMostAdapters. They are never merged into the weights: each text chooses, and texts that run
  // with different ones share passes.
  std::vector<AdapterFile> lora;
  // Path of a small model that drafts tokens for this one (GenerateOptions::draft), with exactly its vocabulary; empty:
  // none. Its KV memory is part of kv_memory, and is given up whenever anything else needs it.
  std::string draft_model;
  int threads = 0;           // 0: one per core this process may use
  std::string isa = "auto";  // kernels: auto, generic, avx2, avx512, amx
  // Folder for a file of the packed weights. It is written once; later engines map it and share its memory. Empty: each
  // engine packs its own.
  std::string weight_dir;
  bool lock_weights = false;  // lock the weights in memory, so that they are never swapped out
  // Codec of the pages: f32, f16, bf16, i16, q8, q4, q4o, q3, q2; "k=q8,v=q4"; "q4,recent=64". "auto": i16 where
  // attention is faster with it on this machine, else f16; requests and sessions may then have either.
  std::string kv_type = "f16";
  // Codecs that sessions and requests may use instead of kv_type, in the same form; at most 6 besides it.
  std::vector<std::string> kv_types;
  int page_slots = 32;          // tokens per page: 16, 32 or 64
  std::uint64_t kv_memory = 0;  // byte budget for all KV, tables included; 0: what one session needs
  // Bytes of kv_memory for prefixes that requests leave for others with the same first tokens. They are freed whenever
  // a request needs them. 0: no prefix cache.
  std::uint64_t prefix_memory = 0;
  // Folder for a file that takes preempted requests' pages where that is cheaper than recomputing them; empty: none.
  // The file has no name and is deleted with the engine.
  std::string swap_dir;
  std::uint64_t swap_size = std::uint64_t{4} << 30;  // its size, at most; at least 1 MiB
  // Folder and size limit for files of tokens that policies with @demote=file drop (docs/policies/demotion.md), and of
  // keys and values that policies with offload=file move out of memory (docs/policies/synckv.md). Empty: such policies
  // are refused. The files have no names and are deleted with the engine.
  std::string demote_dir;
  std::uint64_t demote_size = std::uint64_t{16} << 30;
  // Folder for prefixes that outlive the engine, and its size limit in bytes; empty: none. One process at a time. Needs
  // prefix_memory.
  std::string prefix_dir;
  std::uint64_t prefix_disk = std::uint64_t{10} << 30;
  // A Redis server, "HOST:PORT", that holds prefixes for all engines with the same model; empty: none. Needs
  // prefix_memory.
  std::string redis;
  std::string redis_password;          // empty: the server needs none
  std::int64_t redis_ttl = 24 * 3600;  // seconds for which the server keeps a prefix, 1 or more
  // Gets one line for each problem with prefixes outside memory. May be empty. Called on any thread.
  std::function<void(const std::string&)> warn;
  std::optional<Pooling> pooling;  // of embeddings, in place of the file's; see ModelSummary::pooling
  int chunk = 0;              // prompt tokens per forward pass, 1 to 4096; 0: the policy's own, 256; where it is no
                              // part of the policy 512, or as few as 16 where memory is short
  std::string chat_template;  // Jinja source of the chat template; empty: the file's own
  // Variables of the chat template: name and value. A value that is valid JSON is read as JSON (true, 5, [...]); any
  // other is a string.
  std::vector<std::pair<std::string, std::string>> template_arguments;
  SchedulerOptions scheduler;  // of requests
};

// Options of one context.
struct SessionOptions {
  std::string policy;  // retention policy spec, "name:key=value,..."; empty: streaming, capped at the trained context
                       // or what kv_memory holds, whichever is less
  // First tokens of the text that the policy never drops, such as a system message: sets protect= of policies that have
  // this option (docs/policies), unless `policy` gives it. If that is more than half of what the policy keeps: as many
  // as it accepts. 0: none.
  std::int64_t protect = 0;
  std::string codec;  // of the pages: the engine's kv_type or one of its kv_types; empty: kv_type. With ",rope=long",
                      // the angles for long texts, whatever the length (docs/models.md, "Two sets of angles")
  // The LoRA adapters that the text runs with, each once; others not at all. nullopt: all, with their scales.
  std::optional<std::vector<AdapterScale>> lora;
  int sequences =
      1;  // samples or beams that will run side by side: the first session sizes the cache for them and itself; 1 to 65
};

// How an answer's thoughts are marked, by the model's chat template; from ModelText::encode_prompt.
struct ThoughtMarks {
  std::string open;                 // begins thoughts
  std::vector<std::string> closes;  // each ends them
  bool opened = false;              // the prompt ends inside thoughts
  bool anywhere = false;            // `open` counts anywhere; false: only where nothing but white space precedes it
  // The tokens that end thoughts for which the budget is used up.
  std::vector<std::int32_t> closing;
  // Ends thoughts that open again after `closing` was forced; empty: `closing` does.
  std::vector<std::int32_t> closing_again = {};
};

// One continuation.
struct GenerateOptions {
  // At most kMostGenerated. -1: until the model ends its text, or context or KV memory is exhausted.
  std::int64_t max_tokens = -1;
  bool ignore_eos = false;
  // Generation ends before the first of these; none may be empty. At most 16 of up to 1,024 bytes.
  std::vector<std::string> stop;
  bool include_stop = false;  // the text ends with the string of `stop` that ended it
  // Before so many tokens nothing ends the text but max_tokens, context and memory: tokens that end it are not drawn,
  // and stop strings must begin after them. 0 to max_tokens.
  std::int64_t min_tokens = 0;
  // Tokens that end the text, as kStop; they are not in it. At most 1,024.
  std::vector<std::int32_t> stop_tokens;
  // The only tokens that may be drawn, at most 65,536; empty: all.
  std::vector<std::int32_t> allowed_tokens;
  // Words that are not written, at most 128 of up to 256 bytes: the last token of one is not drawn where the newest
  // generated tokens are all others of it. Each counts as it begins a text and as it follows a space.
  std::vector<std::string> bad_words;
  SamplingOptions sampling;
  // Continues the draws and the sampling options of the session's last generation, as if that had not ended. No effect
  // without one.
  bool resume = false;
  // Restricts the text to a grammar (ModelText::compile): tokens that no text of the grammar can continue with are not
  // drawn, and the text ends where it is complete. Null: any text.
  std::shared_ptr<const Grammar> grammar;
  // Counts the tokens of thoughts: GenerateResult::thought_tokens. Null: thoughts are not told apart.
  std::shared_ptr<const ThoughtMarks> thoughts;
  // Maximum tokens between the marks. When it is reached, ThoughtMarks::closing is forced. Its tokens are ordinary
  // tokens of the answer, which goes on after them. A character or a mark that has begun may end first. -1: no limit.
  // Needs `thoughts`, or messages for which a request finds them. No effect where `grammar` has no place for the marks.
  std::int64_t thought_budget = -1;
  // Control tokens appear in the text, by name. The answer's parser needs them (tools, thoughts).
  bool show_special = false;
  // The tokens of each sample's text, which are read as if they had been drawn; it ends behind the last one with
  // kLength. With `logprobs` this scores answers. A session and a request with one sample take one list; none may be
  // empty. max_tokens must be -1 or the length of the longest, and nothing else may end or restrict the text: no stop
  // strings, stop tokens, limits of tokens, grammar or thoughts. Empty: tokens are drawn.
  std::vector<std::vector<std::int32_t>> forced_texts;
  // Drafts of the next tokens, which a pass checks together: "ngram" takes what followed the newest tokens before,
  // "ngram:match=3,most=7" where at least so many occurred before, and so many at a time; "model" or "model:most=7"
  // takes what EngineOptions::draft_model says; "policy:SPEC" takes what the model itself says where it attends only to
  // what a policy by range would keep, such as "policy:streaming:cap=512". Changes no token, only the speed. No effect
  // where the policy or the model allows no drafts (DraftReport::refused). Empty or "off": none.
  std::string draft;
  // Reports each token's log-probability and this many of the likeliest tokens in its place; 0 to 100, -1: no report.
  int logprobs = -1;
  // For requests: the same for each prompt token but the first. No effect on a session.
  int prompt_logprobs = -1;
};

struct BeamOptions {
  int width = 4;                // beams that run side by side, 1 to 64
  double length_penalty = 1.0;  // score = log probability / tokens^length_penalty; -10 to 10
  std::int64_t max_tokens = 256;
  bool ignore_eos = false;
};

}  // namespace kvasir

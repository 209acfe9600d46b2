// What a caller may set. Every field has a default that works; validation happens where the options are taken.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvasir {

struct SamplingOptions {
  float temperature = 0.8F;         // 0: greedy; up to 100
  int top_k = 40;                   // keep the k largest logits; 0: all
  float top_p = 0.95F;              // keep the smallest set with this probability mass (0, 1]; 1: all
  float min_p = 0.05F;              // drop tokens less likely than min_p times the likeliest [0, 1]; 0: none
  float repetition_penalty = 1.0F;  // logits of seen tokens divided (positive) or multiplied (negative) by it; (0, 10]
  float frequency_penalty = 0.0F;   // subtracted times the number of occurrences [-10, 10]
  float presence_penalty = 0.0F;    // subtracted once if seen [-10, 10]
  int penalty_window = 64;          // tokens that count as seen: the last this many of the context; 0: no penalties
  // DRY: where the last n >= dry_allowed_length tokens of the context stood before, followed by a token, the logit of
  // that token loses dry_multiplier * dry_base^(n - dry_allowed_length). Tokens with a line break, a quotation mark, a
  // colon or an asterisk are never lowered, and a repetition does not reach across them.
  float dry_multiplier = 0.0F;  // 0: off; [0, 100]
  float dry_base = 1.75F;       // [1, 10]
  int dry_allowed_length = 2;   // tokens that may be repeated freely; 1 to 1,024
  int dry_window = 4096;        // the last this many tokens of the context are searched; 1 to 65,536
  std::uint64_t seed = 0;       // 0: the engine draws one and reports it
  // Token ids and what is added to their logits, -100 to 100, before penalties and all else. At most 1,024, each once.
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

// When a request may start; see SchedulerOptions::admission.
enum class Admission {
  kUse,      // usage now and its own peak stay below the stop mark
  kReserve,  // the peaks of all that run fit the cache: none of them is ever preempted for memory
};

// How requests share the cache and the passes. None of it changes a token.
struct SchedulerOptions {
  // Seconds between two tokens of a request that are not to be exceeded: as many prompt tokens join a pass as the
  // measured speed allows, but at least a few. 0: no bound.
  double max_itl = 0;
  // Shares of the KV memory, above 0 and up to 1, preempt_mark at least stop_mark. A request starts while usage and its
  // peak stay below the stop mark; running requests grow up to the preempt mark, and then one of them gives up its
  // pages.
  double stop_mark = 0.90;
  double preempt_mark = 0.98;
  Admission admission = Admission::kUse;
  int max_running = 64;   // requests (each sample counts) that hold pages, 1 or more
  int prompt_rows = 256;  // prompt tokens of all requests together in one pass, 1 to 4096
  // Requests for which the memory below the stop mark is meant, 1 or more: Admission::kUse takes the peak of a request
  // without a limit of its own (no max_tokens, or all that the trained context leaves) as this share of it at most.
  int side_by_side = 16;
};

// Options of an Engine: one model, one KV pool, one set of threads.
struct EngineOptions {
  std::string model;         // path of a GGUF file, or of any part of a split one
  int threads = 0;           // 0: one per core this process may use
  std::string isa = "auto";  // kernels: auto, generic, avx2, avx512, amx
  // Folder for a file of the weights as kernels want them, packed once; later engines map it, and share its memory.
  // Empty: each engine packs its own.
  std::string weight_dir;
  bool lock_weights = false;    // lock the weights in memory, so that they are never paged out
  std::string kv_type = "f16";  // codec of the pages: f32, f16, bf16, q8, q4, q4o, q3, q2; "k=q8,v=q4"; "q4,recent=64"
  // Codecs that sessions and requests may have in place of kv_type, in the same form; at most 6 beside it.
  std::vector<std::string> kv_types;
  int page_slots = 32;          // tokens per page: 16, 32 or 64
  std::uint64_t kv_memory = 0;  // byte budget for all KV, tables included; 0: what one session needs
  // Bytes of kv_memory that requests may leave behind for others that begin with the same tokens; they are given back
  // whenever a request needs them. 0: nothing is left.
  std::uint64_t prefix_memory = 0;
  // Folder for a file into which requests' pages go where that is cheaper than to compute them again; empty: none do.
  // The file has no name and is gone with the engine.
  std::string swap_dir;
  std::uint64_t swap_size = std::uint64_t{4} << 30;  // its size, at most; at least 1 MiB
  // Folder for files of what policies with @demote=file drop (docs/policies/demotion.md), and of heads that policies
  // with offload=file leave unread (docs/policies/synckv.md), and bytes of either, at most;
  // empty: such policies are refused. The files have no names and are gone with the engine.
  std::string demote_dir;
  std::uint64_t demote_size = std::uint64_t{16} << 30;
  // Folder in which prefixes outlive the engine, and bytes there, at most; empty: none. One process at a time. Needs
  // prefix_memory.
  std::string prefix_dir;
  std::uint64_t prefix_disk = std::uint64_t{10} << 30;
  // A Redis server, "HOST:PORT", that holds prefixes for all engines with the same model; empty: none. Needs
  // prefix_memory.
  std::string redis;
  std::string redis_password;          // empty: it asks for none
  std::int64_t redis_ttl = 24 * 3600;  // seconds that it keeps a prefix, 1 or more
  // Optional: told a line of what went wrong with prefixes outside memory. Any thread may call it.
  std::function<void(const std::string&)> warn;
  int chunk = 0;              // prompt tokens per forward pass, 1 to 4096; 0: the policy's own, 256; where it is no
                              // part of the policy 512, or as few as 16 where memory is short
  std::string chat_template;  // Jinja source of the chat template; empty: the file's own
  // Variables of the chat template: name and value. A value that is JSON is read as such (true, 5, [...]); any other is
  // a string.
  std::vector<std::pair<std::string, std::string>> template_arguments;
  SchedulerOptions scheduler;  // of requests
};

// One context and what is kept of it.
struct SessionOptions {
  std::string policy;  // retention policy spec, "name:key=value,..."; empty: streaming, with the smaller of the trained
                       // context and what kv_memory holds as its cap
  // First tokens of the text that the policy never drops, such as a system message: protect= of policies that have this
  // option (docs/policies), unless `policy` gives it; where that is more than half of what the policy keeps, as many as
  // it takes. 0: none.
  std::int64_t protect = 0;
  std::string codec;  // of its pages: kv_type or one of kv_types of the engine; empty: kv_type
  int sequences =
      1;  // samples or beams that will run side by side: the first session sizes the cache for them and itself; 1 to 65
};

// One continuation.
struct GenerateOptions {
  std::int64_t max_tokens = -1;  // -1: until the model ends its text (or the policy's memory is full)
  bool ignore_eos = false;
  std::vector<std::string> stop;  // generation ends before the first of these; none may be empty
  SamplingOptions sampling;
  // Goes on with the draws and the sampling options of the session's last generation, as if that had not ended. Has no
  // effect where there was none.
  bool resume = false;
  // Reports each token with its log-probability and this many of the likeliest in its place; 0 to 100, -1: no report.
  int logprobs = -1;
  // Of a request: reports the same of each token of the prompt but the first. Without effect on a session.
  int prompt_logprobs = -1;
};

struct BeamOptions {
  int width = 4;                // beams that go on side by side, 1 to 64
  double length_penalty = 1.0;  // score = log probability / tokens^length_penalty; -10 to 10
  std::int64_t max_tokens = 256;
  bool ignore_eos = false;
};

}  // namespace kvasir

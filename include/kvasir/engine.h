// The library's front door: open a model, then either hold a session, or submit requests.
//
// A session is one text that the caller reads and continues, call by call:
//
//   auto engine = kvasir::Engine::open({.model = "model.gguf"});
//   auto session = (*engine)->new_session({});
//   (*session)->read("Once upon a time");
//   auto result = (*session)->generate({.max_tokens = 100}, [](std::string_view text) { return true; });
//
// Requests are many texts that the engine moves on together, one forward pass for all of them at a time:
//
//   (*engine)->submit({.prompt = "Once upon a time", .generate = {.max_tokens = 100}});
//   (*engine)->submit({.messages = {{"user", "Who are you?"}}, .policy = "streaming:window=508"});
//   while ((*engine)->unfinished() > 0)
//     if (auto events = (*engine)->poll(); events.ok())
//       for (const kvasir::Event& event : *events) { ... }  // kvasir/request.h
//
// Both share one KV cache. A call of a session runs its own passes and no others; requests move in poll() alone.
// Neither takes pages from the other: a session that finds no room gets kResourceExhausted or ends with kKvMemory while
// waiting requests hold pages, and requests wait or end while sessions do.
//
// Thread-safety: an Engine, its sessions and its requests belong to one thread at a time (they share one set of kernel
// threads). Two things may be used by other threads meanwhile: text(), and plan() as it says. Ownership: sessions keep
// their engine's parts alive through a shared pointer; either may go first. Requests end with their engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/finish_reason.h"
#include "kvasir/model_text.h"
#include "kvasir/options.h"
#include "kvasir/plan.h"
#include "kvasir/prefix_listener.h"
#include "kvasir/request.h"
#include "kvasir/result.h"
#include "kvasir/status.h"
#include "kvasir/view.h"

namespace kvasir {

// One result of a beam search.
struct BeamResult {
  std::string text;
  std::int64_t tokens = 0;
  double log_probability = 0;  // of the tokens, the end token included
  double score = 0;            // see BeamOptions::length_penalty
  FinishReason finish_reason = FinishReason::kLength;
};

struct ModelSummary {
  std::string name;
  std::string architecture;
  std::int64_t context = 0;  // trained context, tokens
  int vocabulary = 0;
  std::uint64_t weight_bytes = 0;
  std::string isa;
  int threads = 0;
  std::string chat_template;           // "jinja": one that is interpreted; without one "markers", "chatml" or "plain"
  bool chat_template_unknown = false;  // the file's template is no template: messages are refused with what is wrong
  bool pre_tokenizer_assumed = false;  // the file does not say how text is cut into words; it is as GPT-2 does
  int kv_heads = 0;                    // of a layer
  SamplingOptions sampling;            // that the file recommends (general.sampling.*); elsewhere the defaults
};

class Session {
 public:
  virtual ~Session() = default;

  // Called between forward passes with tokens done and tokens in all; return false to stop (kCancelled).
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Reads text, or one chat message, into the session's context. Text that continues what is there already is taken as
  // it stands; a message first closes the answer before it, if that ended without. A user's message ends with the start
  // of an answer, which generate() continues and an "assistant" message fills. A message that the model's chat template
  // makes part of the next one (the system message of Llama 2 and Mistral) is read with that. Errors: kInvalidArgument
  // (invalid UTF-8, text longer than 256 MiB, a message that the template has no place for), kResourceExhausted (before
  // any of it is read: the context or the KV budget can never hold what the policy holds of the text; or others hold
  // the budget), kCancelled. After an error the session holds what was read before it.
  virtual Status read(std::string_view text, const Progress& progress = {}) = 0;
  virtual Status say(std::string_view role, std::string_view content, const Progress& progress = {}) = 0;

  // Continues the context. `on_text` gets text as it becomes complete and returns false to stop; it is not called
  // again then. The result's text is all that grows without end with the tokens generated, where the policy has a
  // bound. REQUIRES: something was read. Errors: kInvalidArgument for options, kResourceExhausted, kDataLoss (the
  // model's output is NaN). After kDataLoss, or where the system refused memory in the middle of a pass, the session
  // can only be looked at: every other call returns that error.
  virtual Result<GenerateResult> generate(const GenerateOptions& options,
                                          const std::function<bool(std::string_view)>& on_text) = 0;

  // Samples `count` continuations of the context side by side, sample i with seed + i; they share the context's pages.
  // `on_text` gets the number of a sample and its text as it becomes complete, and returns false to cancel that sample.
  // A sample that fails does so alone: its result has the text so far, FinishReason::kFailed and a status. The session
  // stays as it is. REQUIRES: as generate. Errors: as generate; kInvalidArgument for a count outside 1 to 64, and if a
  // sample's seed would exceed 2^64 - 1.
  virtual Result<std::vector<GenerateResult>> sample(
      const GenerateOptions& options, int count, const std::function<bool(std::size_t, std::string_view)>& on_text) = 0;

  // Returns the continuations of highest probability that a beam search finds, best first. `progress` (may be empty)
  // is called with the tokens done; return false to stop. The session stays as it is. Errors: as sample.
  virtual Result<std::vector<BeamResult>> beam_search(const BeamOptions& options,
                                                      const std::function<bool(std::int64_t)>& progress) = 0;

  // Returns a session with the same context that shares all its pages. A page is copied when either writes to it.
  // Errors: kResourceExhausted.
  virtual Result<std::unique_ptr<Session>> fork() const = 0;

  // Writes the session to a file that Engine::load_session continues as if it had never stopped: written whole or not
  // at all. May run on any thread while the engine goes on, if nothing else uses the session meanwhile. Errors:
  // kInvalidArgument (the place), kResourceExhausted (a full disk).
  virtual Status save(const std::string& path) const = 0;

  // The id of the first token dropped (in any layer) and how many were, so far (on average over layers, rounded up);
  // dropped is 0 while nothing is forgotten.
  struct Forgotten {
    std::int64_t first = 0;
    std::int64_t dropped = 0;
  };
  virtual Forgotten forgotten() const = 0;
  virtual KvReport kv() const = 0;
};

// Bytes of KV memory. See Engine::set_quota.
struct TenantQuota {
  std::uint64_t floor = 0;
  std::uint64_t ceiling = 0;
};

class Engine {
 public:
  // `progress` (may be empty) is called with the bytes of weights loaded and in all. Errors: any, each with one line
  // that says what and how to mend it.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options,
                                              const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});
  virtual ~Engine() = default;

  virtual const ModelSummary& model() const = 0;

  // The model's tokenizer and chat template; lives as long as the engine. Any thread may use it at any time.
  virtual const ModelText& text() const = 0;

  // Says what a request would take, by the arithmetic of admission; changes nothing. Once a first session or request
  // has made the cache, any thread may call it at any time. Errors: kInvalidArgument (the policy, figures out of
  // range). What can never fit is no error: see RequestPlan::refusal.
  virtual Result<RequestPlan> plan(const PlanRequest& request) const = 0;

  // All sessions and forks share one cache. Without EngineOptions::kv_memory the policy of the first session sizes it,
  // for that session alone; give kv_memory to hold several. Errors: kInvalidArgument (the policy, or kv_memory too
  // small for it), kResourceExhausted (memory, or a bounded policy that this cache can never hold).
  virtual Result<std::unique_ptr<Session>> new_session(const SessionOptions& options) = 0;

  struct LoadedSession {
    std::unique_ptr<Session> session;
    bool other_arithmetic = false;  // written by other kernels: later tokens may differ from what they would have been
  };
  // Continues a session that Session::save wrote. Policy, page type and page size are the file's, whatever the options.
  // `sequences`: as in SessionOptions. Errors: kNotFound, kDataLoss (damaged), kInvalidArgument (of another model),
  // kUnsupported (another format), kResourceExhausted.
  virtual Result<LoadedSession> load_session(const std::string& path, int sequences = 1) = 0;
  // The same, but the file is only read and checked: the session takes KV memory from its first use on. A request that
  // continues it is admitted with what the file holds, and loads that when it starts, within its tenant's quota. The
  // file must not be changed until then, but another may be renamed to its place. Once a first session or request has
  // made the cache, any thread may call it at any time. Errors: as load_session; kInvalidArgument without a cache.
  virtual Result<LoadedSession> open_session(const std::string& path) const = 0;

  // Takes a request, which runs in the calls of poll() that follow. Everything is checked before anything is kept:
  // after an error the engine is as it was. Without EngineOptions::kv_memory a first request sizes the cache for
  // itself, as a first session does; later ones then wait for each other. Errors: kInvalidArgument (no prompt or
  // several, invalid UTF-8, an unknown token id, a message that the template has no place for, the policy, options of
  // generation, the number of samples), kResourceExhausted (a prompt that its policy, the trained context, the whole
  // cache or its tenant's ceiling can never hold; the message has the figures). What is generated is not counted there:
  // a text may end early, and one that does not ends with kKvMemory.
  virtual Result<RequestId> submit(const RequestOptions& options) = 0;

  // Runs one forward pass for the requests that have work, and returns what happened since the last call, in order;
  // within a pass in order of priority, then of arrival. Prompts share a bounded number of rows in a pass, the
  // best-ranked first, so that requests which are generating go on in every pass. Runs no pass when there is no
  // request, and while all of them wait for sessions (RequestOptions::releases_session).
  //
  // EngineOptions::scheduler says when requests start. Where the KV memory does not hold the next tokens of all, those
  // that rank last wait: what borrows beyond its tenant's floor, then the worse priority, then the later arrival. One
  // that held pages gives them up and reads its tokens again when there is room: that costs time and changes no bit,
  // and it happens to no request twice before it has produced a token. The best-ranked request always goes on; if it
  // cannot although no other request holds pages (of its tenant, for a ceiling), as the memory is too small or a
  // session holds it, it ends with kKvMemory. Errors: kResourceExhausted when the system refuses memory: events that
  // were not returned come with the next call.
  virtual Result<std::vector<Event>> poll() = 0;

  // Ends a request between two passes: its pages are free on return, and the next poll() returns kFinished with
  // FinishReason::kCancelled and the text so far for each of its samples that had not ended. Errors: kNotFound for an
  // id that is unknown, or whose samples have all ended.
  virtual Status cancel(RequestId request) = 0;

  // Requests whose last event poll() has not returned yet.
  virtual std::int64_t unfinished() const = 0;
  // Whether prefixes are still on their way to places outside memory. They get there by themselves; poll() then frees
  // buffers and brings report() up to date.
  virtual bool settling() const { return false; }

  // Sets what the requests of a tenant may hold together: `floor` bytes are theirs whatever others want, and what they
  // hold beyond is borrowed, and goes first where others need it; `ceiling` bytes (0: no limit) is the most. A request
  // is charged for the pages it refers to. Samples divide those they share, and so do requests that continue the same
  // exact pages as long as their policies have dropped nothing. Cached prefixes count for nobody. Errors:
  // kInvalidArgument (a negative tenant, a ceiling below its floor, floors that add up to more than the cache, where
  // its size is known).
  virtual Status set_quota(int tenant, const TenantQuota& quota) = 0;

  // Optional; may be null. Tells the listener of every exact block that the prefix cache holds now, and from then on of
  // each change. The listener must outlive the engine, or be replaced before it goes. Nothing is reported at the
  // engine's end.
  virtual void set_prefix_listener(PrefixListener* listener) = 0;

  // The cache of all sessions and requests.
  virtual CacheReport cache() const = 0;
  virtual EngineReport report() const = 0;

  // What a tenant's requests hold; at most `most` samples.
  virtual SequenceList sequences(int tenant, std::size_t most) const = 0;
  // Which tokens of one sample are kept; takes less than a millisecond, whatever the length. Errors: kNotFound for a
  // request that is unknown, has ended (but see RequestOptions::inspect) or is another tenant's.
  virtual Result<TokenView> tokens_of(const TokenQuery& query) const = 0;
};

}  // namespace kvasir

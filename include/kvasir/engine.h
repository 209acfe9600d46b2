// Opens a model, and runs it through sessions or requests.
//
// A session is one text that the caller reads and continues call by call:
//
//   auto engine = kvasir::Engine::open({.model = "model.gguf"});
//   auto session = (*engine)->new_session({});
//   (*session)->read("Once upon a time");
//   auto result = (*session)->generate({.max_tokens = 100}, [](std::string_view text) { return true; });
//
// Requests are many texts that the engine advances together, in one forward pass at a time:
//
//   (*engine)->submit({.prompt = "Once upon a time", .generate = {.max_tokens = 100}});
//   (*engine)->submit({.messages = {{"user", "Who are you?"}}, .policy = "streaming:window=508"});
//   while ((*engine)->unfinished() > 0)
//     if (auto events = (*engine)->poll(); events.ok())
//       for (const kvasir::Event& event : *events) { ... }  // kvasir/request.h
//
// Both share one KV cache. A call of a session runs only its own passes; requests advance only in poll(). Neither takes
// pages from the other. While requests hold the pages, a session gets kResourceExhausted or ends with kKvMemory; while
// sessions hold them, requests wait or end.
//
// Thread-safety: an Engine, its sessions and its requests belong to one thread at a time (they share one set of kernel
// threads). Exceptions: text(), plan(), open_session() and Session::save(), as each says. Ownership: sessions keep the
// engine's parts alive through a shared pointer, so either may be destroyed first. Requests end with their engine.
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
#include "kvasir/pooling.h"
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

// A LoRA adapter that is loaded. Its id is its place in the list.
struct AdapterSummary {
  std::string name;           // general.name of its file, or the file's name
  std::string path;           // as in EngineOptions::lora
  std::string task;           // adapter.lora.task_name of its file; may be empty
  std::string prompt_prefix;  // adapter.lora.prompt_prefix, what prompts should begin with; may be empty
  float scale = 1;            // of texts that do not choose
  int rank = 0;               // the largest
  std::uint64_t bytes = 0;    // allocated
};

struct ModelSummary {
  std::string name;
  std::string architecture;
  std::int64_t context = 0;  // trained context, tokens
  int vocabulary = 0;
  std::uint64_t weight_bytes = 0;
  std::string isa;
  int threads = 0;
  std::string chat_template;  // "jinja": a template that is interpreted; otherwise "markers", "chatml" or "plain"
  bool chat_template_unknown = false;  // the file's template does not parse: messages are refused with the reason
  bool pre_tokenizer_assumed = false;  // the file does not say how text is cut into words; GPT-2's way is used
  int kv_heads = 0;                    // per layer
  SamplingOptions sampling;            // recommended by the file (general.sampling.*); defaults for the rest
  int width = 0;                       // of hidden states
  Pooling pooling = Pooling::kNone;    // for which the model was trained; kNone: the file names none that is supported
  std::vector<AdapterSummary> adapters = {};
  std::string draft_model = {};          // name of EngineOptions::draft_model
  std::uint64_t draft_weight_bytes = 0;  // allocated for its weights
};

class Session {
 public:
  virtual ~Session() = default;

  // Called between forward passes with the tokens done and the total; returns false to stop (kCancelled).
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Reads text, or one chat message, into the session's context. Text is appended as it is. A message first closes an
  // answer that broke off. A user's message ends with the opening of an answer, which generate() continues and an
  // "assistant" message fills. A message that the chat template writes as part of the next one (the system message of
  // Llama 2 and Mistral) is read with that one. Errors: kInvalidArgument (invalid UTF-8, text longer than 256 MiB, a
  // message that the template has no place for), kResourceExhausted (before any of it is read: the context or the KV
  // budget can never hold what the policy keeps of the text, or others hold the budget), kCancelled. After an error the
  // session holds what was read before it.
  virtual Status read(std::string_view text, const Progress& progress = {}) = 0;
  virtual Status say(std::string_view role, std::string_view content, const Progress& progress = {}) = 0;

  // Continues the context. `on_text` gets text as it becomes complete; after it returns false it is not called again.
  // Under a policy with a bound only the result's text grows with the tokens generated. REQUIRES: something was read.
  // Errors: kInvalidArgument for options, kResourceExhausted, kDataLoss (the model's output is NaN). After kDataLoss,
  // or if the system refused memory in the middle of a pass, the session can only be inspected: every other call
  // returns that error.
  virtual Result<GenerateResult> generate(const GenerateOptions& options,
                                          const std::function<bool(std::string_view)>& on_text) = 0;

  // Samples `count` continuations of the context in parallel, sample i with seed + i; they share the context's pages.
  // `on_text` gets a sample's number and its text as it becomes complete, and returns false to cancel that sample. A
  // sample fails alone: its result has the text so far, FinishReason::kFailed and a status. The session is unchanged.
  // REQUIRES: as generate. Errors: as generate; kInvalidArgument for a count outside 1 to 64, and if a sample's seed
  // would exceed 2^64 - 1.
  virtual Result<std::vector<GenerateResult>> sample(
      const GenerateOptions& options, int count, const std::function<bool(std::size_t, std::string_view)>& on_text) = 0;

  // Returns the continuations of highest probability that a beam search finds, best first. `progress` (may be empty)
  // gets the tokens done and returns false to stop. The session is unchanged. Errors: as sample.
  virtual Result<std::vector<BeamResult>> beam_search(const BeamOptions& options,
                                                      const std::function<bool(std::int64_t)>& progress) = 0;

  // Returns a session with the same context that shares all its pages. A page is copied when either writes to it.
  // Errors: kResourceExhausted.
  virtual Result<std::unique_ptr<Session>> fork() const = 0;

  // Writes a file, whole or not at all, from which Engine::load_session continues the session exactly. May run on any
  // thread beside the engine if nothing else uses the session meanwhile. Errors: kInvalidArgument (the path),
  // kResourceExhausted (a full disk).
  virtual Status save(const std::string& path) const = 0;

  // The id of the first token dropped in any layer, and the number dropped so far (mean over layers, rounded up; 0:
  // none).
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
  // `progress` (may be empty) gets the bytes of weights loaded and their total. Errors: any code, with a one-line
  // message that says what is wrong and how to fix it.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options,
                                              const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});
  virtual ~Engine() = default;

  virtual const ModelSummary& model() const = 0;

  // Returns the model's tokenizer and chat template, which live as long as the engine. Any thread may use them.
  virtual const ModelText& text() const = 0;

  // Returns what a request would take, by the arithmetic of admission; changes nothing. Any thread may call it at any
  // time once a first session or request has made the cache. Errors: kInvalidArgument (the policy, figures out of
  // range). A request that can never fit is not an error: see RequestPlan::refusal.
  virtual Result<RequestPlan> plan(const PlanRequest& request) const = 0;

  // Sets the scales of LoRA adapters for texts that begin from now on and do not choose, as if EngineOptions::lora had
  // had them; those of adapters that are not named become 0. Errors: kInvalidArgument for an adapter that there is not.
  virtual Status set_lora(const std::vector<AdapterScale>& scales) = 0;

  // Creates a session. All sessions and forks share one cache. Without EngineOptions::kv_memory the first session's
  // policy sizes it for that session alone; set kv_memory to hold several. Errors: kInvalidArgument (the policy, or
  // kv_memory too small for it), kResourceExhausted (memory, or a bounded policy that this cache can never hold).
  virtual Result<std::unique_ptr<Session>> new_session(const SessionOptions& options) = 0;

  struct LoadedSession {
    std::unique_ptr<Session> session;
    bool other_arithmetic = false;            // written by other kernels: later tokens may differ
    std::vector<AdapterScale> adapters = {};  // that it was saved with, and goes on with
  };
  // Continues a session that Session::save wrote, with the file's policy, page type and page size. `sequences`: as in
  // SessionOptions. Errors: kNotFound, kDataLoss (damaged), kInvalidArgument (of another model), kUnsupported (another
  // format), kResourceExhausted.
  virtual Result<LoadedSession> load_session(const std::string& path, int sequences = 1) = 0;
  // As load_session, but only reads and checks the file: the session takes KV memory when it is first used. A request
  // that continues it is admitted with the file's KV memory, and loads the file at its start, within its tenant's
  // quota. Until then the file must not be modified, but may be replaced by a rename. Any thread may call this at any
  // time once a first session or request has made the cache. Errors: as load_session; kInvalidArgument without a cache.
  virtual Result<LoadedSession> open_session(const std::string& path) const = 0;

  // Takes a request, which runs in later calls of poll(). Checks everything first: after an error the engine is
  // unchanged. Without EngineOptions::kv_memory the first request sizes the cache for itself, as a first session does;
  // later ones then wait for each other. Errors: kInvalidArgument (no prompt or several, invalid UTF-8, an unknown
  // token id, a message that the template has no place for, the policy, options of generation, the number of samples),
  // kResourceExhausted (a prompt that its policy, the trained context, the whole cache or its tenant's ceiling can
  // never hold; the message has the figures). Tokens to generate are not checked: a text may end early, and one that
  // does not ends with kKvMemory.
  virtual Result<RequestId> submit(const RequestOptions& options) = 0;

  // Runs one forward pass for the requests that have work. Returns the events since the last call, in order; those of a
  // pass by priority, then by arrival. The prompts of a pass share a bounded number of rows, best-ranked first, so that
  // generating requests advance in every pass. Runs no pass when there is no request, or when all wait for sessions
  // (RequestOptions::releases_session).
  //
  // EngineOptions::scheduler says when requests start. If the KV memory cannot hold the next tokens of all, the
  // lowest-ranked wait. Those that hold pages are preempted: first those that borrow beyond their tenant's floor, then
  // those of the worst priority, then the cheapest to bring back. A preempted request gives up its pages, and reads its
  // tokens again when there is room. That costs time, changes no bit, and happens to no request twice before it has
  // produced a token. The best-ranked request always goes on. It ends with kKvMemory if it cannot although no other
  // request holds pages (of its tenant, for a ceiling), because the memory is too small or a session holds it. Errors:
  // kResourceExhausted when the system refuses memory: events that were not returned come with the next call.
  virtual Result<std::vector<Event>> poll() = 0;

  // Ends a request between two passes. Its pages are free on return. The next poll() returns, for each of its samples
  // that had not ended, kFinished with FinishReason::kCancelled and the text so far. Errors: kNotFound for an id that
  // is unknown, or whose samples have all ended.
  virtual Status cancel(RequestId request) = 0;

  // Returns the number of requests whose last event poll() has not returned yet.
  virtual std::int64_t unfinished() const = 0;
  // Returns whether prefixes are still being written to places outside memory. The writes need no call; a poll() after
  // them frees buffers and updates report().
  virtual bool settling() const { return false; }

  // Sets the bytes that a tenant's requests may hold together. `floor` bytes are guaranteed; requests beyond it borrow,
  // and are preempted first when others need memory. `ceiling` (0: no limit) is the most. A request is charged for the
  // pages it refers to. Samples divide the pages they share; so do requests that continue the same exact pages, while
  // their policies have dropped nothing. Cached prefixes are charged to no tenant. Errors: kInvalidArgument (a negative
  // tenant, a ceiling below its floor, floors that add up to more than the cache, where its size is known).
  virtual Status set_quota(int tenant, const TenantQuota& quota) = 0;

  // Reports every exact block in the prefix cache to the listener now, and each later change. May be null. The listener
  // must outlive the engine, or be replaced before its destruction. Nothing is reported when the engine ends.
  virtual void set_prefix_listener(PrefixListener* listener) = 0;

  // Returns the cache of all sessions and requests.
  virtual CacheReport cache() const = 0;
  virtual EngineReport report() const = 0;

  // Returns what a tenant's requests hold in the cache, for at most `most` samples.
  virtual SequenceList sequences(int tenant, std::size_t most) const = 0;
  // Returns which tokens of one sample are kept, in less than a millisecond for any length. Errors: kNotFound for a
  // request that is unknown, has ended (unless RequestOptions::inspect) or is another tenant's.
  virtual Result<TokenView> tokens_of(const TokenQuery& query) const = 0;
};

}  // namespace kvasir

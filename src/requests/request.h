// One request on its way through the queue, as a state machine.
//
// A submission asks for one or more samples of a text. Each sample is a Request with its own sequence, and is
// scheduled, preempted and ended on its own. RequestGroup (request_group.h) holds what the samples have in common.
//
// These calls change the state. A call from any other state fails a KVASIR_CHECK.
//
//   call             from          to             what has happened
//   begin_fetch      kWaiting      kFetching      its first tokens are read from a disk or a server
//   end_fetch        kFetching     kWaiting       they have come, or do not come
//   start            kWaiting      kRunning       it has a sequence
//   release          kRunning      kWaiting       its sequence is gone: its tokens are run again later
//   begin_swap_out   kRunning      kSwappingOut   its pages are written to the swap file
//   end_swap_out     kSwappingOut  kSwapped       they are in the file alone
//   begin_swap_in    kSwapped      kSwappingIn    it has a sequence, whose pages are read from the swap file
//   end_swap_in      kSwappingIn   kRunning       all of them are back
//   cancel_swap_in   kSwappingIn   kSwapped       the sequence is gone; the file still has all
//   release          kSwappingOut, kSwapped, kSwappingIn
//                                  kWaiting       its sequence and what the file has of it are gone
//   end              any but kSwappingIn and kEnded
//                                  kEnded         its last event is told
//
// What a request holds follows from its state:
//
//                    sequence   swap   fetch
//   kWaiting         no         no     no
//   kFetching        no         no     yes
//   kRunning         yes        no     no
//   kSwappingOut     yes        yes    no
//   kSwapped         no         yes    no
//   kSwappingIn      yes        yes    no
//   kEnded           no         no     no
//
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "prefix_store/prefix_store.h"
#include "prefix_store/prefix_tiers.h"
#include "requests/shadow/request_quality.h"
#include "requests/swap.h"
#include "scheduler/task.h"
#include "session/session.h"

namespace kvasir {

struct RequestGroup;

enum class RequestState { kWaiting, kFetching, kRunning, kSwappingOut, kSwapped, kSwappingIn, kEnded };

// Returns "waiting", "swapping out" and so on.
std::string_view request_state_name(RequestState state);

// How far a request has come, in tokens unless noted otherwise.
struct RequestProgress {
  // Sets how many of the tokens the sequence holds now. Returns how many of them had run before a preemption.
  std::int64_t note_run(std::int64_t tokens);

  std::int64_t run = 0;          // held by its sequence
  std::int64_t most_run = 0;     // most that any sequence of it has held
  std::int64_t generated = 0;    // after its last pass
  std::int64_t recomputed = 0;   // run again after a preemption
  std::int64_t preemptions = 0;  // number of times
  bool spared = false;           // it was preempted and has produced no token since
  std::size_t told_choices = 0;  // number of Generation::choices() reported in events
};

// What the prefix cache has for a request, and what the request has put there.
struct RequestPrefix {
  std::int64_t found = 0;           // tokens of its text that the cache has
  std::uint64_t found_version = 0;  // version of the cache at the last query; 0: query again
  // Of its newest start:
  std::int64_t start_tokens = 0;  // tokens from the cache
  bool start_snapshot = false;    // they came from a snapshot
  PrefixMiss start_miss = PrefixMiss::kUnknown;
  // Of stores outside memory:
  bool asked_stores = false;             // since its newest start
  std::int64_t found_before_fetch = -1;  // tokens that the cache had before the first fetch; -1: no fetch
  std::string_view fetched_from;         // PrefixFetch::from of the newest fetch that brought something
  std::int64_t published = 0;            // prompt tokens that had run when it last put a prefix into the cache
};

// Bytes of KV memory in the accounts of a request.
struct RequestBytes {
  std::uint64_t to_start = 0;        // needed before it starts
  std::uint64_t shared_prefix = 0;   // part of its peak: a prefix that another request held when this one started
  std::optional<KvReport> released;  // of the sequence that it gave up last, until it holds as much again
};

class Request {
 public:
  // `begin`: the state of the text before its first token. REQUIRES: it has no sequence.
  Request(RequestGroup* group, int sample, TextState begin);
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Sets what it runs. Call it once, before any transition but start().
  void set_task(std::vector<TokenId> prompt, Generation generation);
  // Returns sample `sample` of the same text, which continues from here with its own draws. `sequence`: a fork of this
  // request's; null: the sample runs all tokens itself.
  std::unique_ptr<Request> fork(int sample, std::unique_ptr<Sequence> sequence) const;

  RequestState state() const { return state_; }
  bool is(RequestState state) const { return state_ == state; }
  bool holds_pages() const { return text_.sequence != nullptr; }

  // The transitions: see the table above.
  void begin_fetch(std::shared_ptr<PrefixFetch> fetch);
  void end_fetch();
  // `pages`: of the session that it continues, those that must still be filled.
  void start(std::unique_ptr<Sequence> sequence, SessionPages pages = {});
  void release();
  void begin_swap_out(std::unique_ptr<SwappedSequence> swap);
  void end_swap_out();
  void begin_swap_in(std::unique_ptr<Sequence> sequence);
  void end_swap_in();
  void cancel_swap_in();
  // Returns the text, with its sequence if it held one.
  TextState end();

  RequestGroup& group() const { return *group_; }
  int sample() const { return sample_; }
  Task& task() { return *task_; }
  const Task& task() const { return *task_; }
  const TextState& text() const { return text_; }
  const Sequence* sequence() const { return text_.sequence.get(); }
  // Returns what it has run, as the prefix cache needs it.
  PrefixText prefix_text() const;
  // Returns the part of it that a start may take from the prefix cache: not the rows whose logits it still needs.
  PrefixText start_text() const;
  SwappedSequence& swap() { return *swap_; }        // REQUIRES: kSwappingOut, kSwapped or kSwappingIn
  PrefixFetch& fetch() { return *fetch_; }          // REQUIRES: kFetching
  SessionPages& session_pages() { return pages_; }  // pages of its sequence that must still be filled

  RequestProgress progress;
  RequestPrefix prefix;
  RequestBytes bytes;
  std::unique_ptr<RequestQuality> quality;  // null: it promises none

  // Returns whether it waits for its shadow (requests/shadow): it runs nothing until then.
  bool is_held() const { return quality != nullptr && quality->is_checking(); }

 private:
  RequestGroup* group_;
  int sample_;
  RequestState state_ = RequestState::kWaiting;
  TextState text_;
  std::optional<Task> task_;
  SessionPages pages_;
  std::unique_ptr<SwappedSequence> swap_;
  std::shared_ptr<PrefixFetch> fetch_;
};

}  // namespace kvasir

// The engine's Session: one sequence, the conversation in it, and its generations.
// Thread-safety: as Session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/answer.h"
#include "kvasir/engine.h"
#include "retention/policy.h"
#include "scheduler/batch_runner.h"
#include "session/session_file.h"

namespace kvasir {

// A request's text as token ids.
struct RequestText {
  std::vector<TokenId> tokens;
  std::vector<std::string> stops;                     // of the chat template, for messages
  std::int64_t system_tokens = 0;                     // PromptTokens::system_tokens
  std::int64_t lasting = 0;                           // PromptTokens::lasting_tokens
  std::shared_ptr<const AnswerForm> answer = {};      // PromptTokens::answer
  std::shared_ptr<const Grammar> grammar = {};        // PromptTokens::grammar
  std::shared_ptr<const ThoughtMarks> thoughts = {};  // PromptTokens::thoughts
};

// The interface to a session for a request that continues it (RequestOptions::session). The request runs on a copy, so
// that it can be preempted and begin again, and hands over the copy when it has ended.
class SessionBase {
 public:
  virtual ~SessionBase() = default;
  virtual const std::shared_ptr<BatchRunner>& runner() const = 0;
  // Returns what the session holds; unchanged between begin() and end(). While stored(), its sequence only counts
  // pages, in a cache of its own.
  virtual const TextState& held() const = 0;
  // Returns whether its pages are only in a file.
  virtual bool stored() const = 0;
  // Returns a sequence in the engine's cache with the session's state. For a stored session the pages must still be
  // filled from the file, while the session lives and is stored; otherwise it is a fork. Errors: kResourceExhausted.
  struct Copy {
    std::unique_ptr<Sequence> sequence;
    SessionPages pages;
  };
  virtual Result<Copy> copy() const = 0;
  // Expires when the session is destroyed.
  virtual std::weak_ptr<const void> life() const = 0;
  // Returns the request's prompt as tokens behind the context, and remembers it for end(). Errors: as Session::say and
  // read, except for memory.
  virtual Result<RequestText> begin(const RequestOptions& options) = 0;
  // Replaces the session's text by `text`, after the prompt was read and the answer ended. `mid_character`: of the
  // generation, before it was flushed. REQUIRES: text.sequence; begin() was called.
  virtual void end(TextState text, const Generation& generation, bool mid_character) = 0;
};

// Makes an empty session that holds its tokens in the runner's cache under `policy`, and shares ownership of the
// runner. `chunk`: of prompts; 0: the policy's own; nullopt: the engine's option. `codec`: one that the cache allows;
// nullopt: the cache shape's. `adapters`: as Sequence.
std::unique_ptr<Session> make_session(std::shared_ptr<BatchRunner> runner, std::unique_ptr<RetentionPolicy> policy,
                                      std::optional<int> chunk = {}, std::optional<KvCodec> codec = {},
                                      std::optional<std::vector<AppliedAdapter>> adapters = {});

// Makes a session that was loaded into the runner's cache. With `image`, `loaded` is in a cache without a store, and
// the pages are loaded from the image when the session is first used. Errors: kDataLoss.
Result<std::unique_ptr<Session>> make_session(std::shared_ptr<BatchRunner> runner, LoadedSession loaded,
                                              std::shared_ptr<const SessionImage> image = nullptr);

}  // namespace kvasir

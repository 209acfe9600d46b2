// The engine's Session: one sequence, the conversation in it, and its generations.
// Thread-safety: as Session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "retention/policy.h"
#include "scheduler/driver.h"
#include "session/session_file.h"

namespace kvasir {

// A request's text as token ids.
struct RequestText {
  std::vector<TokenId> tokens;
  std::vector<std::string> stops;  // of the chat template, for messages
  std::int64_t system_tokens = 0;  // PromptTokens::system_tokens
};

// What a request that continues a session needs of it (RequestOptions::session). The request runs on a copy, so that it
// can give up its pages and begin again, and hands over the copy when it has ended.
class SessionBase {
 public:
  virtual ~SessionBase() = default;
  virtual const std::shared_ptr<Driver>& driver() const = 0;
  // What the session holds. Does not change between begin() and end(). While stored(), its sequence only counts pages,
  // in a cache of its own.
  virtual const TextState& held() const = 0;
  // Whether its pages are in a file alone.
  virtual bool stored() const = 0;
  // Returns a sequence in the engine's cache that stands where the session does: a fork, or if the session is stored
  // what the file holds. Then its pages are still to be filled, while the session lives and is stored. Errors:
  // kResourceExhausted.
  struct Copy {
    std::unique_ptr<Sequence> sequence;
    SessionPages pages;
  };
  virtual Result<Copy> copy() const = 0;
  // Expires when the session is destroyed.
  virtual std::weak_ptr<const void> life() const = 0;
  // Returns the request's prompt as tokens behind the context, and remembers it for end(). Errors: as Session::say and
  // read, but for memory.
  virtual Result<RequestText> begin(const RequestOptions& options) = 0;
  // The prompt was read and the answer has ended: the session holds `text` from now on. `mid_character`: of the
  // generation, before what it held back was flushed. REQUIRES: text.sequence, begin().
  virtual void end(TextState text, const Generation& generation, bool mid_character) = 0;
};

// Makes an empty session that holds its tokens in the driver's cache under `policy`. It shares ownership of the driver.
// `chunk`: of prompts, 0: the policy's own; without one, that of the engine's options. `codec`: one that the cache
// allows; none: that of the cache's shape.
std::unique_ptr<Session> make_session(std::shared_ptr<Driver> driver, std::unique_ptr<RetentionPolicy> policy,
                                      std::optional<int> chunk = {}, std::optional<KvCodec> codec = {});

// The same of a session that was loaded into the driver's cache, or, if `image` is given, into one without a store:
// then it is loaded from the image into the driver's cache when it is first used. Errors: kDataLoss.
Result<std::unique_ptr<Session>> make_session(std::shared_ptr<Driver> driver, LoadedSession loaded,
                                              std::shared_ptr<const SessionImage> image = nullptr);

}  // namespace kvasir

// Publishes over ZeroMQ which exact blocks of tokens the prefix cache holds, for routers that send a request to a
// server that knows the beginning of its prompt.
//
// Every message has three frames: the topic, a sequence number (8 bytes, big-endian, from 0 without gaps), and a batch
// (kv_event_batch.h), at most one a pass. The first and the last batch of a process say that all blocks are gone. A
// subscriber that lost messages asks the replay socket for them: it sends ["", sequence number] and gets ["", topic,
// sequence number, batch] for each kept batch from there on, and finally ["", "", -1, ""].
//
// An index that can no longer follow is reset: one batch says that all blocks are gone, then names all current ones.
// This happens when batches were dropped because the sending thread did not keep up, and when a replay was asked for
// batches that are no longer kept.
//
// Messages hold the tokens of prompts and are not encrypted: the sockets are for a private network.
//
// Thread-safety: stored(), removed() and end_pass() are the step thread's, and never wait for a subscriber or for the
// sending thread; any thread may call the others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvasir/prefix_listener.h"
#include "kvasir/result.h"
#include "server/kv_events/kv_event_batch.h"

namespace kvasir {
class Engine;
}

namespace kvasir::server {

struct KvEventOptions {
  std::string endpoint;  // of the PUB socket, for example "tcp://127.0.0.1:5557"; port "*": any that is free
  std::string replay;    // of the ROUTER socket; empty: none
  std::string topic;
  std::size_t queued_bytes = 16 << 20;       // most bytes of batches that wait for the sending thread
  std::size_t kept_batches = 10000;          // most batches kept for replay
  std::size_t kept_bytes = 64 << 20;         // most bytes of kept batches
  std::chrono::milliseconds anew_gap{5000};  // least time between two resets caused by replays
};

// Returns "kv@<host name>@<model>".
std::string default_kv_topic(std::string_view model);

class KvEvents final : public PrefixListener {
 public:
  // Errors: kInvalidArgument (an invalid endpoint), kIo (in use, not permitted).
  static Result<std::unique_ptr<KvEvents>> open(const KvEventOptions& options);
  ~KvEvents() override;

  // The bound endpoints; replay_endpoint() is empty without a replay socket.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;

  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens, std::string_view salt,
              std::string_view codec, std::string_view adapters) override;
  void removed(std::uint64_t hash) override;
  // Passes the events since the last call to the sending thread. REQUIRES: this is the listener of `engine`.
  void end_pass(Engine& engine);

  // Whether end_pass should be called although no pass runs.
  bool wants_pass() const;

 private:
  class Sender;

  explicit KvEvents(std::unique_ptr<Sender> sender);
  template <class Change>
  void note(const Change& change);

  std::unique_ptr<Sender> sender_;
  KvEventCollector collector_;
  bool lost_ = false;  // an event was not collected
};

}  // namespace kvasir::server

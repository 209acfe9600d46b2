// Publishes KV events over ZeroMQ: which exact blocks of tokens the prefix cache holds, for routers that send a request
// where its prompt begins to be known.
//
// Every message has three frames: the topic, a sequence number (8 bytes, big-endian, from 0 without gaps), and a batch
// (kv_event_batch.h), one a pass. The first batch of a process says that all blocks are gone, and so does its last. A
// subscriber that lost messages asks the replay socket for them: it sends ["", sequence number] and gets ["", topic,
// sequence number, batch] for each batch from there on that is still kept, and at last ["", "", -1, ""].
//
// Where an index cannot follow any more, it is told to begin anew: one batch says that all blocks are gone, and then
// names all that are there. That happens where batches were dropped because the sending thread did not keep up, and
// where a replay was asked for batches that are no longer kept.
//
// Messages hold the tokens of prompts and are not encrypted: the sockets are for a private network.
//
// Thread-safety: stored(), removed() and end_pass() are the step thread's, and never wait for a subscriber or for the
// sending thread; the others may be called from any thread.
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
  std::size_t queued_bytes = 16 << 20;       // of batches that wait for the sending thread
  std::size_t kept_batches = 10000;          // for replay
  std::size_t kept_bytes = 64 << 20;         // of these
  std::chrono::milliseconds anew_gap{5000};  // least time between two beginnings that replays ask for
};

// Returns "kv@<host name>@<model>".
std::string default_kv_topic(std::string_view model);

class KvEvents final : public PrefixListener {
 public:
  // Errors: kInvalidArgument (an endpoint that is none), kIo (in use, not permitted).
  static Result<std::unique_ptr<KvEvents>> open(const KvEventOptions& options);
  ~KvEvents() override;

  // Where the sockets are bound; replay_endpoint() is empty without one.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;

  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens, std::string_view salt,
              std::string_view codec) override;
  void removed(std::uint64_t hash) override;
  // Hands what was heard since the last call to the sending thread. REQUIRES: this is the listener of `engine`.
  void end_pass(Engine& engine);

  // Whether end_pass should be called although there is no pass.
  bool wants_pass() const;

 private:
  class Sender;

  explicit KvEvents(std::unique_ptr<Sender> sender);
  template <class Change>
  void note(const Change& change);

  std::unique_ptr<Sender> sender_;
  KvEventCollector collector_;
  bool lost_ = false;  // something was not collected
};

}  // namespace kvasir::server

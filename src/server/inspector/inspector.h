// The Inspector: a page at / that chats with the model and shows the KV cache as it works, and the data it shows.
//
//   GET /, /assets/...      the page. It holds no data, so anybody may load it
//   GET /v1/kv/state        what the cache holds now, as JSON
//   GET /v1/kv/live         the same as a stream of events, some four a second while anything changes
//   GET /v1/kv/policies     the retention policies, and the one that requests without one have
//
// `state` and `live` take ?request=ID&sample=N&from=T: the id of an answer ("chatcmpl-..."), one of its samples (0),
// and the first token whose text is wanted (0). They then say which tokens of it are kept. A caller sees the requests
// of its own tenant, and figures of the whole server only if it may see them (Caller::sees_all).
//
// Views are made on the step thread between two passes, within a bounded time and of bounded size whatever the load.
//
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/view.h"
#include "server/http/router.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

class Inspector {
 public:
  struct Options {
    std::string model;     // as clients name it
    std::string policy;    // of requests that name none; empty: the engine's default
    Gate* gate = nullptr;  // asked again while streams last; may be null. Must outlive the Inspector
    int watchers = 64;     // streams at once; more are answered with 429
    int watchers_of_tenant = 16;
  };

  // `steps` must outlive this. No callback of `steps` may run once this is gone.
  Inspector(StepThread& steps, Options options);
  ~Inspector();

  // This must outlive the router.
  void add_routes(Router& router);

  // Sends streams what is new. Call it some four times a second.
  void tick();

  // Ends all streams: the server is going down.
  void end_streams();

 private:
  struct Watcher;
  struct Seen;

  void state(const Exchange& exchange);
  void live(const Exchange& exchange);
  void policies(const Exchange& exchange) const;
  void end_refused();
  Status ask(const std::vector<std::shared_ptr<Watcher>>& watchers, bool stream);
  void deliver(Watcher& watcher, const Seen& seen) const;
  static Seen look(const Engine& engine, const TokenQuery& query);

  StepThread& steps_;
  Options options_;
  std::vector<std::shared_ptr<Watcher>> watchers_;  // of streams
  std::vector<std::shared_ptr<Watcher>> states_;    // that wait for their only answer
  std::size_t first_ = 0;                           // of the watchers: which is looked at first
  bool asking_ = false;
};

}  // namespace kvasir::server

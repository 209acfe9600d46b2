// The Inspector: a page at / that chats with the model and shows the KV cache at work, and the page's data. Of several
// models it shows the default one; while that is not loaded, an empty cache.
//
//   GET /, /assets/...      the page. It holds no data, so anybody may load it
//   GET /v1/kv/state        the current content of the cache, as JSON
//   GET /v1/kv/live         the same as a stream of events, about four a second while anything changes
//   GET /v1/kv/policies     the retention policies, and the default for requests
//
// `state` and `live` take ?request=ID&sample=N&from=T: the id of an answer ("chatcmpl-..."), one of its samples (0),
// and the first token whose text is wanted (0). The answer then also has its kept tokens. A caller sees the requests of
// its own tenant, and figures of the whole server only if it may see them (Caller::sees_all).
//
// Views are made on the step thread between two passes, in bounded time and size at any load.
//
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/view.h"
#include "server/http/router.h"
#include "server/models/model_desk.h"

namespace kvasir::server {

class Inspector {
 public:
  struct Options {
    Gate* gate = nullptr;  // checked again while streams last; may be null. Must outlive this
    int watchers = 64;     // most streams at once; more are answered with 429
    int watchers_of_tenant = 16;
  };

  // `models` must outlive this. No callback of a model's StepThread may run once this is gone.
  Inspector(ModelDesk& models, Options options);
  ~Inspector();

  // This must outlive the router.
  void add_routes(Router& router);

  // Sends changes to the streams. Call it about four times a second.
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
  void end_asking();
  // `queued`: see StepReport.
  void deliver(Watcher& watcher, const Seen& seen, std::int64_t queued) const;
  static Seen look(const Engine& engine, const TokenQuery& query);

  ModelDesk& models_;
  Options options_;
  std::vector<std::shared_ptr<Watcher>> watchers_;  // watchers with streams
  std::vector<std::shared_ptr<Watcher>> states_;    // watchers that wait for their only answer
  std::size_t first_ = 0;                           // the watcher whose view is made first
  bool asking_ = false;
  ModelLease model_;  // while asking_
};

}  // namespace kvasir::server

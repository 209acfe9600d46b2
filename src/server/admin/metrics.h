// The server's metrics, in Prometheus' text format.
//
// Names are vLLM's behind the prefix "kvasir:". On request they are written a second time behind "vllm:", for routers
// and dashboards that know only these. docs/operations/serving.md lists them.
//
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/admin/traffic.h"
#include "server/http/router.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

struct MetricsOptions {
  // The models' names, the default first: label model_name of their metrics. Those of the whole server have the first.
  std::vector<std::string> models;
  std::string version;
  std::int64_t context = 0;           // tokens that a request can have at most; bounds the buckets of its histograms
  bool vllm = false;                  // also write metrics under vLLM's names
  bool open = true;                   // anybody may read them; false: only callers that may see the whole server
  std::chrono::milliseconds age{20};  // a text younger than this is returned again
};

// What a model does now.
struct ModelFigures {
  std::string name;
  bool loaded = false;
  std::int64_t loads = 0;
  std::int64_t waiting = 0;  // requests that wait for it to be loaded
  StepReport steps;          // zeros unless it is loaded
};

// Sources of figures that no event reports; each may be empty. Called on the I/O thread.
struct MetricsSources {
  std::function<std::vector<ModelFigures>()> models;
  std::function<std::chrono::steady_clock::duration()> busy;  // see StepThread::busy
  std::function<int()> connections;
  std::function<std::uint64_t()> dropped_log_lines;
  std::function<std::map<int, std::string>()> tenants;  // numbers and names
};

class Metrics : public TrafficObserver {
 public:
  static std::unique_ptr<Metrics> make(MetricsOptions options, MetricsSources sources);

  // Adds GET /metrics. This must outlive the router.
  virtual void add_route(Router& router) = 0;
  // Returns all metrics as text, at most MetricsOptions::age old.
  virtual const std::string& text() = 0;
};

}  // namespace kvasir::server

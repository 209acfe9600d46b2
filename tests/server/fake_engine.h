// An engine that runs no model, for tests of what is around it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir::server {

inline Status unused() {
  return {StatusCode::kUnsupported, "not part of this test"};
}

// Ends a request in the pass after its submission, but for those that wait for ever.
class FakeEngine final : public Engine {
 public:
  int submits_that_throw = 0;
  bool waits = false;  // no request starts
  std::uint64_t kv_bytes = 0;
  ModelSummary summary;

  const ModelSummary& model() const override { return summary; }
  const ModelText& text() const override { std::abort(); }
  Result<RequestPlan> plan(const PlanRequest&) const override { return unused(); }
  Result<std::unique_ptr<Session>> new_session(const SessionOptions&) override { return unused(); }
  Result<LoadedSession> load_session(const std::string&, int) override { return unused(); }
  Result<LoadedSession> open_session(const std::string&) const override { return unused(); }
  Result<RequestId> submit(const RequestOptions&) override {
    if (submits_that_throw > 0) {
      --submits_that_throw;
      throw std::bad_alloc();
    }
    requests_.push_back(RequestId{next_++});
    return requests_.back();
  }
  Result<std::vector<Event>> poll() override {
    std::vector<Event> events;
    if (waits) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return events;
    }
    for (const RequestId id : requests_) {
      Event& event = events.emplace_back();
      event.kind = Event::Kind::kFinished;
      event.request = id;
    }
    requests_.clear();
    return events;
  }
  Status cancel(RequestId id) override {
    std::erase(requests_, id);
    return {};
  }
  std::int64_t unfinished() const override { return std::ssize(requests_); }
  Status set_lora(const std::vector<AdapterScale>&) override { return {}; }
  Status set_quota(int, const TenantQuota&) override { return {}; }
  void set_prefix_listener(PrefixListener*) override {}
  CacheReport cache() const override { return {0, 0, kv_bytes}; }
  EngineReport report() const override {
    EngineReport report;
    report.waiting = std::ssize(requests_);
    return report;
  }
  SequenceList sequences(int, std::size_t) const override { return {}; }
  Result<TokenView> tokens_of(const TokenQuery&) const override { return unused(); }

 private:
  std::vector<RequestId> requests_;
  std::uint64_t next_ = 1;
};

}  // namespace kvasir::server

// What the server's metrics, usage records and logs hear of each request.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

// A request that has ended. Times are in seconds, as the I/O thread saw them; those of steps that were not reached are
// negative.
struct RequestRecord {
  std::string id;
  std::string request_id;  // HttpRequest::id
  std::string path;
  std::string tenant;
  std::string session;  // that it continues; empty: none
  std::string policy;
  // The first sample's, from the engine; or "error", "abandoned" (the client left) or "shutdown" (the server ended).
  std::string finish_reason;
  int http = 200;
  std::int64_t samples = 1;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt, from the prefix cache
  std::int64_t recomputed_tokens = 0;  // that were run again after a preemption
  std::int64_t generated_tokens = 0;   // of all samples
  std::int64_t preemptions = 0;
  std::int64_t seen = 0, kept = 0;  // tokens of the KV cache, of the first sample
  double dead_share = 0;            // of its written slots, those whose token was dropped
  double queue_seconds = -1;        // until its first pass
  double first_token_seconds = -1;  // from its arrival
  double prefill_seconds = -1;      // from its first pass until its prompt was read
  double decode_seconds = -1;       // from there to its end
  double total_seconds = 0;
  // Parts of prompt_tokens, cached_tokens and generated_tokens that were already passed to on_progress.
  std::int64_t told_prompt = 0, told_cached = 0, told_generated = 0;
};

class TrafficObserver {
 public:
  virtual ~TrafficObserver() = default;
  // Seconds between two texts of one sample.
  virtual void on_token_gap(double seconds) { static_cast<void>(seconds); }
  // A request that was not taken: why, in one word (queue_full, too_large, invalid, draining, rate_limit, ...), the
  // client's address, and the path that it asked for.
  virtual void on_refused(std::string_view reason, std::string_view address, std::string_view path) {
    static_cast<void>(reason), static_cast<void>(address), static_cast<void>(path);
  }
  // A request that was refused or ended by a fault of the server's own, and why. `why` quotes no prompt.
  virtual void on_fault(const RequestRecord& record, int http, std::string_view why) {
    static_cast<void>(record), static_cast<void>(http), static_cast<void>(why);
  }
  // Now and then of a request that runs: its tokens so far, which on_finished counts again.
  virtual void on_progress(const RequestRecord& record) { static_cast<void>(record); }
  virtual void on_finished(const RequestRecord& record) { static_cast<void>(record); }
};

// Tells several observers, in order.
class Traffic final : public TrafficObserver {
 public:
  // `observer` must outlive this.
  void add(TrafficObserver* observer) { observers_.push_back(observer); }
  void on_token_gap(double seconds) override {
    for (TrafficObserver* observer : observers_) observer->on_token_gap(seconds);
  }
  void on_refused(std::string_view reason, std::string_view address, std::string_view path) override {
    for (TrafficObserver* observer : observers_) observer->on_refused(reason, address, path);
  }
  void on_fault(const RequestRecord& record, int http, std::string_view why) override {
    for (TrafficObserver* observer : observers_) observer->on_fault(record, http, why);
  }
  void on_progress(const RequestRecord& record) override {
    for (TrafficObserver* observer : observers_) observer->on_progress(record);
  }
  void on_finished(const RequestRecord& record) override {
    for (TrafficObserver* observer : observers_) observer->on_finished(record);
  }

 private:
  std::vector<TrafficObserver*> observers_;
};

}  // namespace kvasir::server

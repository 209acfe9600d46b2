// Reports each request to the server's metrics, usage records and logs.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

// A request that has ended. Times are in seconds, as seen by the I/O thread; negative if the request did not get that
// far.
struct RequestRecord {
  std::string id;
  std::string model;       // its name for clients; empty: not known yet
  std::string request_id;  // HttpRequest::id
  std::string path;
  std::string tenant;
  std::string session;  // the session that it continues; empty: none
  std::string policy;
  // The first sample's, from the engine; or "error", "abandoned" (the client left) or "shutdown" (the server ended).
  std::string finish_reason;
  int http = 200;
  std::int64_t samples = 1;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt, from the prefix cache
  std::int64_t recomputed_tokens = 0;  // tokens computed again after preemptions
  std::int64_t generated_tokens = 0;   // of all samples
  std::int64_t preemptions = 0;
  std::int64_t seen = 0, kept = 0;  // KvReport::seen and kept, of the first sample
  double dead_share = 0;            // KvReport::dead_share, of the first sample
  double queue_seconds = -1;        // until its first pass
  double first_token_seconds = -1;  // from its arrival
  double prefill_seconds = -1;      // from its first pass until its prompt was read
  double decode_seconds = -1;       // from then to its end
  double total_seconds = 0;
  // Parts of prompt_tokens, cached_tokens and generated_tokens that were already passed to on_progress.
  std::int64_t told_prompt = 0, told_cached = 0, told_generated = 0;
};

class TrafficObserver {
 public:
  virtual ~TrafficObserver() = default;
  // Reports the seconds between two texts of one sample of a request.
  virtual void on_token_gap(const RequestRecord& record, double seconds) {
    static_cast<void>(record), static_cast<void>(seconds);
  }
  // Reports a refused request: the reason in one word (queue_full, too_large, invalid, draining, rate_limit, ...), the
  // client's address, and the requested path.
  virtual void on_refused(std::string_view reason, std::string_view address, std::string_view path) {
    static_cast<void>(reason), static_cast<void>(address), static_cast<void>(path);
  }
  // Reports a request that the server's own fault refused or ended, and the reason. `why` quotes no prompt.
  virtual void on_fault(const RequestRecord& record, int http, std::string_view why) {
    static_cast<void>(record), static_cast<void>(http), static_cast<void>(why);
  }
  // Reports the tokens so far of a running request, from time to time. on_finished counts them again.
  virtual void on_progress(const RequestRecord& record) { static_cast<void>(record); }
  virtual void on_finished(const RequestRecord& record) { static_cast<void>(record); }
};

// Passes reports to several observers, in order.
class Traffic final : public TrafficObserver {
 public:
  // `observer` must outlive this.
  void add(TrafficObserver* observer) { observers_.push_back(observer); }
  void on_token_gap(const RequestRecord& record, double seconds) override {
    for (TrafficObserver* observer : observers_) observer->on_token_gap(record, seconds);
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

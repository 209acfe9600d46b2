// Reports one completion to the log, the metrics and the usage records.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "server/admin/traffic.h"
#include "server/api/samples.h"
#include "server/http/exchange.h"

namespace kvasir::server {

class FlightRecord {
 public:
  using Clock = std::chrono::steady_clock;

  // `traffic` must outlive this.
  FlightRecord(Traffic& traffic, const std::string& id, const Exchange& exchange);

  Clock::time_point arrived() const { return arrived_; }
  double seconds() const;                // since then
  bool began() const { return began_; }  // the request has had a pass

  void set_samples(int samples) { record_.samples = samples; }  // for all prompts
  void set_model(const std::string& name) { record_.model = name; }
  void set_session(const std::string& id) { record_.session = id; }
  void note_event();
  void note_text(Samples::Sample& sample);
  // Reports tokens during a request, so that a killed server loses less than a second of them.
  void note_progress(const Samples& samples);

  // Reports a request that was not taken. `reason`: see TrafficObserver::on_refused.
  void report_refused(std::string_view reason);
  // Reports a fault of the server; does nothing if the request is at fault.
  void report_fault(int http, const Status& status);
  void report_finished(std::string_view finish_reason, int http, std::string policy, const Samples& samples);

 private:
  void count_tokens(const Samples& samples);
  void note_times_so_far();

  Traffic& traffic_;
  std::string address_;
  RequestRecord record_;
  bool began_ = false;
  bool finished_ = false;          // report_finished was called: later calls do nothing
  Clock::time_point first_event_;  // when the first event arrived; set if began_
  Clock::time_point arrived_ = Clock::now();
  Clock::time_point progress_told_ = arrived_;
};

}  // namespace kvasir::server

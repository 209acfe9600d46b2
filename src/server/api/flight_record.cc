#include "server/api/flight_record.h"

#include <algorithm>
#include <utility>

namespace kvasir::server {
namespace {

double seconds_between(FlightRecord::Clock::time_point from, FlightRecord::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

FlightRecord::FlightRecord(Traffic& traffic, const std::string& id, const Exchange& exchange)
    : traffic_(traffic), address_(exchange.request.address) {
  record_.id = id;
  record_.request_id = exchange.request.id;
  record_.path = exchange.request.path;
  record_.tenant = exchange.caller.tenant;
}

double FlightRecord::seconds() const {
  return seconds_between(arrived_, Clock::now());
}

void FlightRecord::note_event() {
  if (!std::exchange(began_, true)) first_event_ = Clock::now();
}

void FlightRecord::note_text(Samples::Sample& sample) {
  const auto now = Clock::now();
  if (record_.first_token_seconds < 0) record_.first_token_seconds = seconds_between(arrived_, now);
  if (sample.newest_text != Clock::time_point())
    traffic_.on_token_gap(record_, seconds_between(sample.newest_text, now));
  sample.newest_text = now;
}

void FlightRecord::count_tokens(const Samples& samples) {
  const Usage used = samples.usage();
  record_.prompt_tokens = used.prompt;
  record_.cached_tokens = used.cached;
  record_.generated_tokens = used.completion;
}

void FlightRecord::note_progress(const Samples& samples) {
  constexpr std::chrono::milliseconds kPeriod{250};
  const auto now = Clock::now();
  if (now - progress_told_ < kPeriod) return;
  progress_told_ = now;
  count_tokens(samples);
  traffic_.on_progress(record_);
  record_.told_prompt = record_.prompt_tokens;
  record_.told_cached = record_.cached_tokens;
  record_.told_generated = record_.generated_tokens;
}

void FlightRecord::report_refused(std::string_view reason) {
  traffic_.on_refused(reason, address_, record_.path);
}

void FlightRecord::report_fault(int http, const Status& status) {
  if (http >= 500) traffic_.on_fault(record_, http, status.message());
}

// Sets the times of an answer that is cut off: until its first pass, and until now.
void FlightRecord::note_times_so_far() {
  record_.queue_seconds = seconds_between(arrived_, first_event_);
  const bool reads = record_.first_token_seconds < 0;
  const double read = reads ? seconds_between(arrived_, Clock::now()) : record_.first_token_seconds;
  record_.prefill_seconds = std::max(read - record_.queue_seconds, 0.0);
  if (!reads) record_.decode_seconds = seconds_between(arrived_, Clock::now()) - read;
}

void FlightRecord::report_finished(std::string_view finish_reason, int http, std::string policy,
                                   const Samples& samples) {
  if (std::exchange(finished_, true)) return;
  const GenerateResult& result = samples.first().result;
  record_.finish_reason = finish_reason;
  record_.http = http;
  record_.policy = std::move(policy);
  count_tokens(samples);
  for (const Samples::Part& part : samples.parts())
    for (const Samples::Sample& sample : part.samples) {
      record_.preemptions += sample.result.preemptions;
      record_.recomputed_tokens += sample.result.recomputed;
    }
  record_.dead_share = result.kv.dead_share;
  record_.seen = result.kv.seen;
  record_.kept = result.kv.kept;
  if (samples.left() == 0) {
    record_.queue_seconds = result.queue_seconds;
    record_.prefill_seconds = result.prompt_seconds - result.queue_seconds;
    record_.decode_seconds = result.seconds;
  } else if (began_) {
    note_times_so_far();
  }
  record_.total_seconds = seconds_between(arrived_, Clock::now());
  traffic_.on_finished(record_);
}

}  // namespace kvasir::server

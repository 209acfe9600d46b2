// The samples of one completion as far as they have come, and the choices of its answer.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/api/api_response.h"
#include "server/api/prepare.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

class Samples {
 public:
  struct Sample {
    GenerateResult result;
    std::size_t offset = 0;  // characters of its text that were told
    std::chrono::steady_clock::time_point newest_text;
    std::int64_t texts = 0;  // that were told; each is of one token at least
  };
  // Those of one prompt, which is one request of the engine.
  struct Part {
    Ticket ticket{};
    std::vector<Sample> samples;
    std::int64_t prompt_read = 0;  // tokens
  };

  // `request` must outlive this.
  explicit Samples(const ReadyRequest& request) : request_(request) {}

  // Makes the parts of the request. Until then there are none.
  void begin();
  const std::vector<Part>& parts() const { return parts_; }
  Part& part(std::size_t number) { return parts_[number]; }
  const Sample& first() const { return parts_.front().samples.front(); }

  // Notes that a sample has ended.
  void end(Sample& sample, const GenerateResult& result);
  std::size_t left() const { return left_; }  // that have not ended

  // The choice that a sample is, where each sample is one.
  Choice choice_of(std::size_t part, std::size_t sample) const;
  // The `n` best of each part, in order.
  std::vector<Choice> best_choices() const;
  // Of samples that have not ended, what was read and told of them.
  Usage usage() const;

 private:
  const ReadyRequest& request_;
  std::vector<Part> parts_;
  std::size_t left_ = 0;
};

}  // namespace kvasir::server

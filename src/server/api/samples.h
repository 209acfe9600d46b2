// The progress of one completion's samples, and the choices of its answer.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kvasir/answer.h"
#include "server/api/api_response.h"
#include "server/api/prepare.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

class Samples {
 public:
  struct Sample {
    GenerateResult result;
    std::unique_ptr<AnswerParser> parser;  // null: the text is the answer
    Answer answer;                         // what the parser read so far
    std::chrono::steady_clock::time_point newest_text;
    std::int64_t tokens = 0;  // generated so far
  };
  // The samples of one prompt, which is one request of the engine.
  struct Part {
    Ticket ticket{};
    std::vector<Sample> samples;
    std::int64_t prompt_read = 0;  // tokens
  };

  // `request` must outlive this.
  explicit Samples(const ReadyRequest& request) : request_(request) {}

  // Makes the parts of the request. Before this there are none. `seed`: of the ids of calls; different for each answer.
  void begin(std::uint64_t seed);
  const std::vector<Part>& parts() const { return parts_; }
  Part& part(std::size_t number) { return parts_[number]; }
  const Sample& first() const { return parts_.front().samples.front(); }

  // Returns what the next text of a sample brings; `ends`: the text is its last. REQUIRES: it has a parser.
  static std::vector<AnswerPiece> read(Sample& sample, std::string_view text, bool ends);

  // Notes that a sample has ended.
  void end(Sample& sample, const GenerateResult& result);
  std::size_t left() const { return left_; }  // that have not ended

  // The choice of a sample. REQUIRES: every sample is a choice.
  Choice choice_of(std::size_t part, std::size_t sample) const;
  // The choices of all samples. REQUIRES: as choice_of.
  std::vector<Choice> all_choices() const;
  // The `n` best of each part, in order.
  std::vector<Choice> best_choices() const;
  // The usage so far: for samples that have not ended, the tokens read and sent.
  Usage usage() const;

 private:
  const ReadyRequest& request_;
  std::vector<Part> parts_;
  std::size_t left_ = 0;
};

}  // namespace kvasir::server
